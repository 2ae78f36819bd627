package harness

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// The paths of the sidecar's API.
const (
	StatusPath = "/initialization/status"
	StartPath  = "/initialization/start"
	ConfigPath = "/config"
)

// Forever is the duration of a validation that runs until the test calls Finish.
const Forever = time.Duration(-1)

// Sidecar imitates etcd-backup-restore, and can be made slow or faulty. Like the original, it reports the result of a
// validation only once. Tests must set up the responses before the process is started.
type Sidecar struct {
	t       *testing.T
	Port    int // 0 until Listen is called, unless the sidecar is stopped
	config  func() map[string]any
	server  *http.Server
	handler http.Handler
	stopped bool // Listen is not called when a process is started, only by the test
	once    sync.Once
	closed  chan struct{}
	cleared chan struct{} // closed by ClearFaults

	tls     *tls.Config        // nil for plain HTTP
	Results []string           // results of the next validations; afterwards, all validations are Successful
	Takes   time.Duration      // duration of a validation
	Slow    time.Duration      // delay before the first byte of the configuration is sent
	Faults  map[string][]Fault // faults by path, each for a single request
	Broken  map[string]Fault   // faults by path for all requests after those in Faults

	mu       sync.Mutex
	state    string
	requests []Request
}

// A Request records a request that the sidecar has received or, in a record of its own, a status word that the sidecar
// has served.
type Request struct {
	At     time.Time
	Method string
	Path   string
	mode   string // validation mode in the request
	status string // status word; empty for a received request
}

func newSidecar(t *testing.T, config func() map[string]any) *Sidecar {
	s := &Sidecar{
		t: t, config: config, closed: make(chan struct{}), cleared: make(chan struct{}), state: "New",
		Faults: map[string][]Fault{}, Broken: map[string]Fault{},
	}
	mux := http.NewServeMux()
	mux.HandleFunc(StatusPath, s.status)
	mux.HandleFunc(StartPath, s.start)
	mux.HandleFunc(ConfigPath, s.serveConfig)
	s.handler, s.server = mux, &http.Server{Handler: s.handle(mux), ReadHeaderTimeout: Patience}
	return s
}

// Listen starts listening on the first call. Until then, connections are refused.
func (s *Sidecar) Listen() {
	s.t.Helper()
	s.once.Do(func() {
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", s.Port))
		require.NoError(s.t, err)
		s.Port = listener.Addr().(*net.TCPAddr).Port
		if s.tls != nil {
			listener = tls.NewListener(listener, s.tls)
		}
		s.t.Cleanup(func() {
			close(s.closed)
			_ = s.server.Close() // an error does not affect the test
		})
		go func() { _ = s.server.Serve(listener) }() // returns after Close
	})
}

// handle records a request and passes it to the next fault for its path or, if there is none, to the next handler.
func (s *Sidecar) handle(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.requests = append(s.requests, Request{At: time.Now(), Method: r.Method, Path: r.URL.Path, mode: r.URL.Query().Get("mode")})
		fault := s.Broken[r.URL.Path]
		if queue := s.Faults[r.URL.Path]; len(queue) > 0 {
			fault, s.Faults[r.URL.Path] = queue[0], queue[1:]
		}
		s.mu.Unlock()
		if fault != nil {
			fault(s, w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// status serves the status of the validation. A result is served only once, regardless of the HTTP method. The next
// request gets the status New.
func (s *Sidecar) status(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	word := s.state
	if word == "Successful" || word == "Failed" {
		s.state = "New"
	}
	s.requests = append(s.requests, Request{At: time.Now(), status: word})
	s.mu.Unlock()
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(len(word)))
	w.WriteHeader(http.StatusOK)
	_, _ = io.WriteString(w, word)
}

// start starts a validation, unless a validation is running or its result has not been served yet. The response has
// status code 200 even if the request is ignored.
func (s *Sidecar) start(http.ResponseWriter, *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != "New" {
		return
	}
	s.state = "Progress"
	if s.Takes != Forever {
		time.AfterFunc(s.Takes, s.finish)
	}
}

// Finish waits until a validation of duration Forever has started, and then completes it.
func (s *Sidecar) Finish() {
	s.t.Helper()
	Eventually(s.t, "a validation starts", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.state == "Progress"
	})
	s.finish()
}

func (s *Sidecar) finish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = "Successful"
	if len(s.Results) > 0 {
		s.state, s.Results = s.Results[0], s.Results[1:]
	}
}

func (s *Sidecar) serveConfig(w http.ResponseWriter, _ *http.Request) {
	select {
	case <-time.After(s.Slow):
	case <-s.closed:
	}
	text, err := yaml.Marshal(s.config())
	if err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/x-yaml")
	_, _ = w.Write(text) // a disconnected client repeats the request
}

// Requests returns the requests for a path in order.
func (s *Sidecar) Requests(path string) (found []Request) {
	return s.Filter(func(r Request) bool { return r.Path == path })
}

// Statuses returns the requests that were answered with the status word, in order.
func (s *Sidecar) Statuses(word string) (found []Request) {
	return s.Filter(func(r Request) bool { return r.status == word })
}

// Filter returns the requests for which wanted returns true, in order.
func (s *Sidecar) Filter(wanted func(Request) bool) (found []Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.requests {
		if wanted(r) {
			found = append(found, r)
		}
	}
	return found
}

// Modes returns the modes of all initialization requests in order.
func (s *Sidecar) Modes() []string {
	modes := []string{}
	for _, r := range s.Requests(StartPath) {
		modes = append(modes, r.mode)
	}
	return modes
}

// ClearFaults removes all faults and sends correct responses to the requests that Block has blocked.
func (s *Sidecar) ClearFaults() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.Broken)
	clear(s.Faults)
	close(s.cleared)
	s.cleared = make(chan struct{})
}

// Await waits until a path has been requested.
func (s *Sidecar) Await(path string) {
	s.t.Helper()
	Eventually(s.t, "the sidecar receives a request for "+path, func() bool { return len(s.Requests(path)) > 0 })
}

// A Fault handles a request instead of the sidecar's own handler, usually incorrectly.
type Fault func(*Sidecar, http.ResponseWriter, *http.Request)

// Block accepts a request, but does not respond until ClearFaults is called.
func Block(s *Sidecar, w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	cleared := s.cleared
	s.mu.Unlock()
	select {
	case <-r.Context().Done():
	case <-s.closed:
	case <-cleared:
		s.Serve(w, r)
	}
}

// Serve sends a correct response.
func (s *Sidecar) Serve(w http.ResponseWriter, r *http.Request) { s.handler.ServeHTTP(w, r) }

// Reply returns a Fault that responds with the status code and body.
func Reply(code int, body string) Fault {
	return func(_ *Sidecar, w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(code)
		_, _ = w.Write([]byte(body))
	}
}
