package local

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"etcd-wrapper/internal/printable"
	"etcd-wrapper/readiness"
)

const (
	heartbeat = time.Second      // between two lines of a reply
	patience  = 10 * time.Second // for a client to take one
)

// Maker makes full backups. Its methods may be called from any goroutine.
type Maker interface {
	// Make makes one now, or waits for the one that is being made. Its error is a sentence for people. It must return soon after
	// the context ends, which is when the client leaves or the server ends; the backup itself may go on.
	Make(ctx context.Context) (Made, error)
	// Uploaded is how much of the one that is being made is in the store, and of how much, both in bytes of the database; 0 of 0
	// while there is nothing to tell.
	Uploaded() (done, total int64)
}

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
	ended := run(ctx, maker)
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	lines := &writer{to: w, control: http.NewResponseController(w)}
	for lines.send(progress(maker)) == nil {
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

func progress(maker Maker) event {
	done, total := maker.Uploaded()
	return event{Uploaded: done, Of: total}
}

func run(ctx context.Context, maker Maker) <-chan event {
	ended := make(chan event, 1)
	go func() {
		made, err := maker.Make(ctx)
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
