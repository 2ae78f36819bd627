package main_test

import (
	"crypto/tls"
	"fmt"
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
	statusPath = "/initialization/status"
	startPath  = "/initialization/start"
	configPath = "/config"
)

// forever is a validation that does not end.
const forever = time.Duration(-1)

// sidecar plays etcd-backup-restore. What a test scripts, it sets before the process starts.
type sidecar struct {
	t      *testing.T
	port   int
	config func() map[string]any
	server *http.Server
	late   bool // a test opens the port, not the start of the first process
	once   sync.Once
	closed chan struct{}

	tls      *tls.Config        // nil for plain HTTP
	verdicts []string           // of the validations to come, Successful after them
	takes    time.Duration      // by a validation
	halves   time.Duration      // between the two packets of a status word; 0 for one packet
	slow     time.Duration      // before the first byte of the configuration
	faults   map[string][]fault // taken one after the other
	broken   map[string]fault   // what is left then

	mu       sync.Mutex
	state    string
	finished time.Time // when the last validation ended
	heard    []request
}

// request is one that the sidecar has got.
type request struct {
	at     time.Time
	method string
	path   string
	mode   string // as asked for
	answer string // the status word that was served
}

func newSidecar(t *testing.T, config func() map[string]any) *sidecar {
	s := &sidecar{
		t: t, port: freePort(t), config: config, closed: make(chan struct{}), state: "New",
		faults: map[string][]fault{}, broken: map[string]fault{},
	}
	mux := http.NewServeMux()
	mux.HandleFunc(statusPath, s.status)
	mux.HandleFunc(startPath, s.start)
	mux.HandleFunc(configPath, s.serveConfig)
	mux.HandleFunc(trapPath, trap)
	s.server = &http.Server{Handler: s.scripted(mux), ReadHeaderTimeout: soon}
	return s
}

// listen opens the port, once; before that, connections are refused.
func (s *sidecar) listen() {
	s.t.Helper()
	s.once.Do(func() {
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", s.port))
		require.NoError(s.t, err)
		if s.tls != nil {
			listener = tls.NewListener(listener, s.tls)
		}
		s.t.Cleanup(func() {
			close(s.closed)
			_ = s.server.Close() // nobody is left who would care
		})
		go s.server.Serve(listener) // ends with Close
	})
}

// scripted records a request and answers with a fault if it is time for one.
func (s *sidecar) scripted(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.heard = append(s.heard, request{at: time.Now(), method: r.Method, path: r.URL.Path, mode: r.URL.Query().Get("mode")})
		spoil := s.broken[r.URL.Path]
		if queue := s.faults[r.URL.Path]; len(queue) > 0 {
			spoil, s.faults[r.URL.Path] = queue[0], queue[1:]
		}
		s.mu.Unlock()
		if spoil != nil {
			spoil(s, w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// status tells a verdict once, whatever the method.
func (s *sidecar) status(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	word := s.state
	if word == "Successful" || word == "Failed" {
		s.state = "New"
	}
	s.heard = append(s.heard, request{at: time.Now(), answer: word})
	s.mu.Unlock()
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(len(word)))
	w.WriteHeader(http.StatusOK)
	half := len(word) / 2
	_, _ = w.Write([]byte(word[:half]))
	if s.halves > 0 {
		_ = http.NewResponseController(w).Flush()
		s.rest(s.halves)
	}
	_, _ = w.Write([]byte(word[half:]))
}

// start ignores everyone who asks at the wrong time, politely.
func (s *sidecar) start(http.ResponseWriter, *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != "New" {
		return
	}
	s.state = "Progress"
	if s.takes != forever {
		time.AfterFunc(s.takes, s.conclude)
	}
}

func (s *sidecar) conclude() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state, s.finished = "Successful", time.Now()
	if len(s.verdicts) > 0 {
		s.state, s.verdicts = s.verdicts[0], s.verdicts[1:]
	}
}

func (s *sidecar) serveConfig(w http.ResponseWriter, _ *http.Request) {
	s.rest(s.slow)
	text, err := yaml.Marshal(s.config())
	if err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/x-yaml")
	_, _ = w.Write(text) // a client that is gone asks again
}

// rest lets time pass, as a slow sidecar does.
func (s *sidecar) rest(pause time.Duration) {
	select {
	case <-time.After(pause):
	case <-s.closed:
	}
}

// requests returns those for a path, in order.
func (s *sidecar) requests(path string) (found []request) {
	return s.filter(func(r request) bool { return r.path == path })
}

// told returns the replies with a status word, in order.
func (s *sidecar) told(word string) (found []request) {
	return s.filter(func(r request) bool { return r.answer == word })
}

func (s *sidecar) filter(wanted func(request) bool) (found []request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.heard {
		if wanted(r) {
			found = append(found, r)
		}
	}
	return found
}

// modes returns the modes of all requests for an initialization.
func (s *sidecar) modes() []string {
	modes := []string{}
	for _, r := range s.requests(startPath) {
		modes = append(modes, r.mode)
	}
	return modes
}

// lastVerdict is when the last validation ended.
func (s *sidecar) lastVerdict() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.finished
}

func (s *sidecar) await(path string) {
	s.t.Helper()
	eventually(s.t, "the sidecar is asked for "+path, func() bool { return len(s.requests(path)) > 0 })
}
