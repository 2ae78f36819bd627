package main_test

import (
	"net/http"
	"slices"
)

// fault is a reply that the sidecar should not give.
type fault func(*sidecar, http.ResponseWriter, *http.Request)

// trapPath is where redirects lead: to a verdict that nobody may believe.
const trapPath = "/trap"

func trap(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("Successful")) }

// times is a fault that is over after a while.
func times(n int, f fault) []fault { return slices.Repeat([]fault{f}, n) }

// hang accepts and never answers.
func hang(s *sidecar, _ http.ResponseWriter, r *http.Request) {
	select {
	case <-r.Context().Done():
	case <-s.closed:
	}
}

// cut closes the connection instead of a reply.
func cut(*sidecar, http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

// cutShort breaks off inside the word.
func cutShort(_ *sidecar, w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Length", "10")
	_, _ = w.Write([]byte("Success"))
	_ = http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}

// say answers with a body of the test's choice.
func say(code int, body string) fault {
	return func(_ *sidecar, w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(code)
		_, _ = w.Write([]byte(body))
	}
}

func redirect(_ *sidecar, w http.ResponseWriter, r *http.Request) {
	http.Redirect(w, r, trapPath, http.StatusFound)
}

// endless begins well and does not stop.
func endless(_ *sidecar, w http.ResponseWriter, r *http.Request) {
	chunk := append([]byte("Successful"), make([]byte, 64<<10)...)
	for r.Context().Err() == nil {
		if _, err := w.Write(chunk); err != nil {
			return
		}
	}
}

// hangHalfway sends the beginning of a configuration and never the rest.
func hangHalfway(s *sidecar, w http.ResponseWriter, r *http.Request) {
	_, _ = w.Write([]byte("name: etcd-main-0\ndata-"))
	_ = http.NewResponseController(w).Flush()
	hang(s, w, r)
}
