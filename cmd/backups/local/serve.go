package local

import (
	"context"
	"encoding/json"
	"net/http"
	"sync/atomic"
	"time"

	"etcd-wrapper/exitcode/printable"
	"etcd-wrapper/readiness"
)

const (
	heartbeat = time.Second      // between two lines of a reply
	patience  = 10 * time.Second // for a client to take one
)

// Maker makes a full backup now, or waits for the one that is being made, and tells the bytes uploaded so far, which it may do
// from any goroutine until it returns. Its error is a sentence for people. It must return soon after the context ends, which
// is when the client leaves or the server ends; the backup itself may go on.
type Maker func(ctx context.Context, uploaded func(bytes int64)) (Made, error)

// Routes are the endpoints by net/http's patterns, for clients on loopback. maker is nil if no backups are made; then flags are
// not looked at.
func Routes(flags Flags, maker Maker) map[string]http.Handler {
	tell, now := http.HandlerFunc(none), http.HandlerFunc(none)
	if maker != nil {
		tell = func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, flags) }
		now = func(w http.ResponseWriter, r *http.Request) { serve(w, r, maker) }
	}
	return map[string]http.Handler{
		"GET /backup":  readiness.ForThisHost("ask how backups are made", tell),
		"POST /backup": readiness.ForThisHost("ask for a backup", now),
	}
}

func none(w http.ResponseWriter, _ *http.Request) {
	answer(w, http.StatusNotFound, event{Error: ErrNoBackups.Error()})
}

func answer(w http.ResponseWriter, status int, content any) {
	headers(w)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(content) // a client that is gone misses nothing
}

func headers(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
}

// serve sends a line of JSON each second and a last one when the backup was made.
func serve(w http.ResponseWriter, r *http.Request, maker Maker) {
	headers(w)
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	var uploaded atomic.Int64
	ended := run(ctx, maker, &uploaded)
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	lines := &writer{to: w, control: http.NewResponseController(w)}
	for lines.send(event{Uploaded: uploaded.Load()}) == nil {
		select {
		case <-beat.C:
		case last := <-ended:
			_ = lines.send(last) // a client that is gone misses nothing
			return
		}
	}
	cancel()
	<-ended
}

func run(ctx context.Context, maker Maker, uploaded *atomic.Int64) <-chan event {
	ended := make(chan event, 1)
	go func() {
		made, err := maker(ctx, uploaded.Store)
		if err != nil {
			ended <- event{Error: printable.Line(err.Error())}
			return
		}
		ended <- event{Made: &made}
	}()
	return ended
}

// writer gives each line a deadline of its own, in the place of the server's, which is for a whole reply.
type writer struct {
	to      http.ResponseWriter
	control *http.ResponseController
}

func (l *writer) send(line event) error {
	if err := l.control.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if err := json.NewEncoder(l.to).Encode(line); err != nil {
		return err
	}
	return l.control.Flush()
}
