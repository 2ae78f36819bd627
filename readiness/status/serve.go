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

	"github.com/klauspost/compress/gzhttp"

	"etcd-wrapper/internal/clock"
	"etcd-wrapper/internal/printable"
)

const (
	// pollInterval is the polling interval for changes that cause no notification, such as those of readiness checks.
	pollInterval = 250 * time.Millisecond
	// minPause is the minimum time between events, so that changes in quick succession are combined.
	minPause = 50 * time.Millisecond
	// heartbeat is the maximum time between events, so that the server and the client can detect a broken
	// connection. The page's timeout is a little more than twice as long.
	heartbeat = 5 * time.Second
	// writeTimeout limits how long writing one event may take.
	writeTimeout = 10 * time.Second
	// maxStreams is the maximum number of open streams; maxPerClient is the maximum per client.
	maxStreams   = 32
	maxPerClient = 8
)

// A Source provides documents. The functions of a Source must not block and must be safe for concurrent use.
type Source struct {
	// Document returns the current document.
	Document func() Document
	// Changed returns a channel that is closed the next time the lifecycle changes.
	Changed func() <-chan struct{}
}

// endpoint serves the documents of a Source.
type endpoint struct {
	source Source

	mu      sync.Mutex
	open    int
	clients map[string]int // number of open streams by client address
}

// Handler serves the document. If the query contains ?watch, Handler streams the current document and each change as
// server-sent events. Each event contains the whole document, but compression shrinks it to little more than the
// changes, unless the document exceeds gzip's 32 KiB window. When the request's context is canceled, the latest
// change is sent before the stream ends. There can be 8 open streams per client, and 32 in total. Control characters
// are escaped for terminals.
func Handler(source Source) http.Handler {
	return gzhttp.GzipHandler(&endpoint{source: source, clients: map[string]int{}})
}

func (e *endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if !r.URL.Query().Has("watch") {
		e.serveDocument(w)
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

// enter adds a stream, or returns why no stream can be added.
func (e *endpoint) enter(client string) (refusal string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.open == maxStreams:
		return "too many open streams"
	case e.clients[client] == maxPerClient:
		return "too many open streams from your address"
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

func (e *endpoint) serveDocument(w http.ResponseWriter) {
	text, err := json.MarshalIndent(e.source.Document(), "", "  ")
	if err != nil {
		http.Error(w, "cannot encode the document: "+err.Error(), http.StatusInternalServerError)
		return
	}
	text = append(printable.JSON(text), '\n')
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	_, _ = w.Write(text) // an error means that the client has disconnected
}

// stream sends events until the request is canceled or an event cannot be written.
func (e *endpoint) stream(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	s := &stream{to: w, control: http.NewResponseController(w), source: e.source}
	s.run(r.Context())
}

// A stream is the response to a client that watches.
type stream struct {
	to      http.ResponseWriter
	control *http.ResponseController
	source  Source
	last    []byte    // document in the last event
	at      time.Time // time of the last event
}

func (s *stream) run(ctx context.Context) {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		ended := ctx.Err() != nil
		changed := s.source.Changed() // must be called before Document, so as not to miss a change
		if err := s.update(); err != nil || ended {
			return
		}
		_ = clock.Sleep(ctx, minPause)
		select {
		case <-ctx.Done():
		case <-changed:
		case <-ticker.C:
		}
	}
}

// update sends the document if it has changed since the last event, or a heartbeat if one is due.
func (s *stream) update() error {
	document, err := json.Marshal(s.source.Document())
	switch {
	case err != nil:
		return err
	case !bytes.Equal(document, s.last):
		s.last = document
		return s.send("data: %s\n\n", printable.JSON(document))
	case time.Since(s.at) >= heartbeat:
		return s.send(": heartbeat\n\n")
	default:
		return nil
	}
}

// send sets a deadline for each event, because the server's deadline applies to the entire reply.
func (s *stream) send(format string, parts ...any) error {
	s.at = time.Now()
	if err := s.control.SetWriteDeadline(s.at.Add(writeTimeout)); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(s.to, format, parts...); err != nil {
		return err
	}
	return s.control.Flush()
}
