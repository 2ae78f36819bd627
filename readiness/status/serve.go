package status

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"
)

const (
	// recheck bounds how late a stream shows what changes without notice: the readiness checks.
	recheck = 250 * time.Millisecond
	// breath is the least time between two events: a burst of changes is sent as one.
	breath = 50 * time.Millisecond
	// heartbeat is how long a stream stays silent at most, so that either side notices when the other is gone. The page
	// believes in the end after twice as long.
	heartbeat = 5 * time.Second
	// patience is how long a client may take to accept one event.
	patience = 10 * time.Second
	// maxStreams bounds what all clients can make the process hold open, and maxPerClient what one of them can:
	// the rest is left to others.
	maxStreams   = 32
	maxPerClient = 8
)

// Source is where documents come from. Both functions answer from memory and are called from many goroutines.
type Source struct {
	// Document returns the document as it is now.
	Document func() Document
	// Changed returns a channel that is closed at the next change of the lifecycle.
	Changed func() <-chan struct{}
}

// endpoint serves a source's documents.
type endpoint struct {
	source Source

	mu      sync.Mutex
	open    int
	clients map[string]int // open streams by the client's address
}

// Handler answers with the document, and with ?watch by a stream of server-sent events: the document now and after each
// change. A stream ends when its request's context does, and sends the latest document before that. One client may have
// 8 streams, all together 32. What the document quotes is escaped where a terminal would obey it.
func Handler(source Source) http.Handler {
	document := source.Document
	source.Document = func() Document { return document().printable() }
	return &endpoint{source: source, clients: map[string]int{}}
}

func (e *endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if !r.URL.Query().Has("watch") {
		e.answer(w)
		return
	}
	client, _, _ := net.SplitHostPort(r.RemoteAddr)
	if reason := e.enter(client); reason != "" {
		w.Header().Set("Retry-After", "10")
		http.Error(w, reason, http.StatusServiceUnavailable)
		return
	}
	defer e.leave(client)
	e.stream(w, r)
}

// enter counts a stream, or says why there can't be another one.
func (e *endpoint) enter(client string) (refusal string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.open == maxStreams:
		return "too many streams are open"
	case e.clients[client] == maxPerClient:
		return "too many streams are open from your address"
	}
	e.open++
	e.clients[client]++
	return ""
}

func (e *endpoint) leave(client string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.open--
	if e.clients[client]--; e.clients[client] == 0 {
		delete(e.clients, client)
	}
}

func (e *endpoint) answer(w http.ResponseWriter) {
	text, err := json.MarshalIndent(e.source.Document(), "", "  ")
	if err != nil {
		http.Error(w, "cannot write the document: "+err.Error(), http.StatusInternalServerError)
		return
	}
	text = append(text, '\n')
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	_, _ = w.Write(text) // a client that is gone misses nothing
}

// stream sends until the request ends or its client does not take what is sent.
func (e *endpoint) stream(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	s := &stream{to: w, control: http.NewResponseController(w), source: e.source}
	s.run(r.Context())
}

// stream is one client that watches.
type stream struct {
	to      http.ResponseWriter
	control *http.ResponseController
	source  Source
	last    []byte // the document that was sent last
	at      time.Time
}

func (s *stream) run(ctx context.Context) {
	beat := time.NewTicker(recheck)
	defer beat.Stop()
	for {
		ended := ctx.Err() != nil
		changed := s.source.Changed() // before the document, so that no change falls in between
		if err := s.update(); err != nil || ended {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(breath):
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-beat.C:
		}
	}
}

// update sends the document if it is another one than before.
func (s *stream) update() error {
	document, err := json.Marshal(s.source.Document())
	switch {
	case err != nil:
		return err
	case !bytes.Equal(document, s.last):
		s.last = document
		return s.send("data: %s\n\n", document)
	case time.Since(s.at) >= heartbeat:
		return s.send(": still here\n\n")
	default:
		return nil
	}
}

// send gives each event a deadline of its own, in the place of the server's, which is for a whole reply.
func (s *stream) send(format string, parts ...any) error {
	s.at = time.Now()
	if err := s.control.SetWriteDeadline(s.at.Add(patience)); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(s.to, format, parts...); err != nil {
		return err
	}
	return s.control.Flush()
}
