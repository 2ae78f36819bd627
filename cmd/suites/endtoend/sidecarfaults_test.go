package endtoend_test

import (
	"net/http"

	"etcd-wrapper/cmd/suites/harness"
)

// trapPath is the target of redirects.
const trapPath = "/trap"

// redirect redirects to trapPath, which serves a result that must be ignored.
func redirect(_ *harness.Sidecar, w http.ResponseWriter, r *http.Request) {
	http.Redirect(w, r, trapPath, http.StatusFound)
}

// cut closes the connection instead of responding.
func cut(*harness.Sidecar, http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

// cutShort closes the connection within the word.
func cutShort(_ *harness.Sidecar, w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Length", "10")
	_, _ = w.Write([]byte("Success"))
	_ = http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}

// endless sends a valid start and never stops.
func endless(_ *harness.Sidecar, w http.ResponseWriter, r *http.Request) {
	chunk := append([]byte("Successful"), make([]byte, 64<<10)...)
	for r.Context().Err() == nil {
		if _, err := w.Write(chunk); err != nil {
			return
		}
	}
}
