package endtoend_test

import (
	"maps"
	"net/http"
	"net/http/httptest"
	"time"

	"etcd-wrapper/cmd/suites/harness"
)

// trapPath is the target of redirects. The wrapper must never request it.
const trapPath = "/trap"

// redirect sends a redirect to trapPath, where the sidecar would serve a successful result.
func redirect(_ *harness.Sidecar, w http.ResponseWriter, r *http.Request) {
	http.Redirect(w, r, trapPath, http.StatusFound)
}

// cut closes the connection without sending a response.
func cut(*harness.Sidecar, http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

// cutShort closes the connection after the first part of the status "Successful".
func cutShort(_ *harness.Sidecar, w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Length", "10")
	_, _ = w.Write([]byte("Success"))
	_ = http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}

// sendForever sends an endless response that starts with the status "Successful".
func sendForever(_ *harness.Sidecar, w http.ResponseWriter, r *http.Request) {
	chunk := append([]byte("Successful"), make([]byte, 64<<10)...)
	for r.Context().Err() == nil {
		if _, err := w.Write(chunk); err != nil {
			return
		}
	}
}

// respondAfter returns a Fault that sends a correct response after a pause.
func respondAfter(pause time.Duration) harness.Fault {
	return func(s *harness.Sidecar, w http.ResponseWriter, r *http.Request) {
		<-time.After(pause)
		s.Serve(w, r)
	}
}

// sendInTwoParts sends a correct response in two packets.
func sendInTwoParts(s *harness.Sidecar, w http.ResponseWriter, r *http.Request) {
	correct := httptest.NewRecorder()
	s.Serve(correct, r)
	maps.Copy(w.Header(), correct.Header())
	body := correct.Body.Bytes()
	_, _ = w.Write(body[:len(body)/2])
	_ = http.NewResponseController(w).Flush()
	<-time.After(50 * time.Millisecond)
	_, _ = w.Write(body[len(body)/2:])
}
