package harness

import (
	"net/http"
	"slices"
	"time"
)

// Fault is a reply that the sidecar should not give.
type Fault func(*Sidecar, http.ResponseWriter, *http.Request)

// TrapPath is where redirects lead: to a verdict that nobody may believe.
const TrapPath = "/trap"

func trap(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("Successful")) }

// Times is a fault that is over after a while.
func Times(n int, f Fault) []Fault { return slices.Repeat([]Fault{f}, n) }

// Hang accepts, and answers when the sidecar is healed.
func Hang(s *Sidecar, w http.ResponseWriter, r *http.Request) {
	if s.hold(r) {
		s.answer.ServeHTTP(w, r)
	}
}

// After answers as it should, but late.
func After(pause time.Duration) Fault {
	return func(s *Sidecar, w http.ResponseWriter, r *http.Request) {
		s.rest(pause)
		s.answer.ServeHTTP(w, r)
	}
}

// hold waits until the sidecar is healed, or nobody waits for an answer any more.
func (s *Sidecar) hold(r *http.Request) (healed bool) {
	s.mu.Lock()
	healing := s.healed
	s.mu.Unlock()
	select {
	case <-r.Context().Done():
	case <-s.closed:
	case <-healing:
		return true
	}
	return false
}

// Cut closes the connection instead of a reply.
func Cut(*Sidecar, http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

// CutShort breaks off inside the word.
func CutShort(_ *Sidecar, w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Length", "10")
	_, _ = w.Write([]byte("Success"))
	_ = http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}

// Answer answers with a body of the test's choice.
func Answer(code int, body string) Fault {
	return func(_ *Sidecar, w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(code)
		_, _ = w.Write([]byte(body))
	}
}

// Redirect leads to a verdict elsewhere.
func Redirect(_ *Sidecar, w http.ResponseWriter, r *http.Request) {
	http.Redirect(w, r, TrapPath, http.StatusFound)
}

// Endless begins well and does not stop.
func Endless(_ *Sidecar, w http.ResponseWriter, r *http.Request) {
	chunk := append([]byte("Successful"), make([]byte, 64<<10)...)
	for r.Context().Err() == nil {
		if _, err := w.Write(chunk); err != nil {
			return
		}
	}
}

// HangHalfway sends the beginning of a configuration and never the rest.
func HangHalfway(s *Sidecar, w http.ResponseWriter, r *http.Request) {
	_, _ = w.Write([]byte("name: etcd-main-0\ndata-"))
	_ = http.NewResponseController(w).Flush()
	s.hold(r)
	panic(http.ErrAbortHandler)
}
