package kubernetes

import (
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/internal/logtest"
	"etcd-wrapper/member/state"
)

const secret = "the-token-of-the-service-account"

// api is a fake API server that stores leases and can fail requests.
type api struct {
	mu      sync.Mutex
	leases  map[string]lease
	token   string
	trouble func(w http.ResponseWriter, r *http.Request) (answered bool) // answers requests that must fail; nil if all requests succeed
	before  func(name string)                                            // called before a patch is read; may be nil
	asked   []string                                                     // methods and names of the requests
	at      []time.Time                                                  // times of the requests
}

func newAPI(names ...string) *api {
	a := &api{leases: map[string]lease{}, token: secret}
	for _, name := range names {
		a.leases[name] = lease{Metadata: leaseMetadata{ResourceVersion: "1"}}
	}
	return a
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name, inNamespace := strings.CutPrefix(r.URL.Path, "/apis/coordination.k8s.io/v1/namespaces/play/leases/")
	a.mu.Lock()
	a.asked, a.at = append(a.asked, r.Method+" "+name), append(a.at, time.Now())
	trouble, before := a.trouble, a.before
	a.mu.Unlock()
	if trouble != nil && trouble(w, r) {
		return
	}
	if r.Method == http.MethodPatch && before != nil {
		before(name)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	there, known := a.leases[name]
	switch {
	case r.Header.Get("Authorization") != "Bearer "+a.token:
		w.WriteHeader(http.StatusUnauthorized)
	case !inNamespace || !known:
		w.WriteHeader(http.StatusNotFound)
	case r.Method == http.MethodGet:
		answer(w, there)
	case r.Method == http.MethodPatch && r.Header.Get("Content-Type") == "application/merge-patch+json":
		a.patch(w, r, name)
	default:
		w.WriteHeader(http.StatusUnsupportedMediaType)
	}
}

func (a *api) patch(w http.ResponseWriter, r *http.Request, name string) {
	there := a.leases[name]
	var change lease
	if err := json.NewDecoder(r.Body).Decode(&change); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	if version := change.Metadata.ResourceVersion; version != "" && version != there.Metadata.ResourceVersion {
		w.WriteHeader(http.StatusConflict)
		return
	}
	version, _ := strconv.Atoi(there.Metadata.ResourceVersion)
	change.Metadata.ResourceVersion = strconv.Itoa(version + 1)
	a.leases[name] = change
	answer(w, change)
}

func answer(w http.ResponseWriter, o lease) { _ = json.NewEncoder(w).Encode(o) }

// set changes a lease as another client would.
func (a *api) set(name, holder string, of time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	version, _ := strconv.Atoi(a.leases[name].Metadata.ResourceVersion)
	a.leases[name] = lease{leaseMetadata{ResourceVersion: strconv.Itoa(version + 1)}, leaseSpec{holder, microTime{of}}}
}

func (a *api) lease(name string) lease {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.leases[name]
}

func (a *api) becomes(trouble func(w http.ResponseWriter, r *http.Request) bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.trouble = trouble
}

// mounted writes a service account directory for a TLS server.
func mounted(t *testing.T, server *httptest.Server) Account {
	t.Helper()
	dir := t.TempDir()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	for name, content := range map[string]string{"ca.crt": string(ca), "token": secret + "\n", "namespace": "play"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	return Account{Dir: dir, Server: strings.TrimPrefix(server.URL, "https://")}
}

var alive = MemberLease{Name: "etcd-main-0", ID: "8e9e05c52164694d", Cluster: "cdf818194e3a8c32", Leads: true}

// over returns Leases that connect to an API server over TLS.
func over(t *testing.T, handler http.Handler, backups func() (BackupLeases, bool)) (*Leases, *logtest.Lines) {
	t.Helper()
	server := httptest.NewTLSServer(handler)
	t.Cleanup(server.Close)
	log := &logtest.Lines{}
	return NewLeases(LeaseOptions{
		Account: mounted(t, server), Cluster: "etcd-main", Log: zerolog.New(log),
		Member: func() (MemberLease, bool) { return alive, true }, Backups: backups,
	}), log
}

func (l *Leases) once(t *testing.T, kind string) (pause time.Duration) {
	t.Helper()
	for _, d := range l.tasks() {
		if d.kind == kind {
			return l.perform(t.Context(), d)
		}
	}
	require.FailNow(t, "no such lease", kind)
	return 0
}

func (l *Leases) fact(t *testing.T, kind string) state.Lease {
	t.Helper()
	for _, fact := range l.States() {
		if fact.Kind == kind {
			return fact
		}
	}
	require.FailNow(t, "nothing is known of it", kind)
	return state.Lease{}
}
