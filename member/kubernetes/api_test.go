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

// fakeAPI is an API server that stores leases and can fail requests.
type fakeAPI struct {
	mu          sync.Mutex
	leases      map[string]lease
	token       string                                                       // the only valid token
	fail        func(w http.ResponseWriter, r *http.Request) (answered bool) // responds to requests that must fail; may be nil
	beforePatch func(name string)                                            // called before a patch is applied; may be nil
	requests    []string                                                     // methods and lease names, in order
	times       []time.Time                                                  // times of the requests
}

func newAPI(names ...string) *fakeAPI {
	a := &fakeAPI{leases: map[string]lease{}, token: secret}
	for _, name := range names {
		a.leases[name] = lease{Metadata: leaseMetadata{ResourceVersion: "1"}}
	}
	return a
}

func (a *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name, inNamespace := strings.CutPrefix(r.URL.Path, "/apis/coordination.k8s.io/v1/namespaces/play/leases/")
	a.mu.Lock()
	a.requests, a.times = append(a.requests, r.Method+" "+name), append(a.times, time.Now())
	fail, beforePatch := a.fail, a.beforePatch
	a.mu.Unlock()
	if fail != nil && fail(w, r) {
		return
	}
	if r.Method == http.MethodPatch && beforePatch != nil {
		beforePatch(name)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	current, known := a.leases[name]
	switch {
	case r.Header.Get("Authorization") != "Bearer "+a.token:
		w.WriteHeader(http.StatusUnauthorized)
	case !inNamespace || !known:
		w.WriteHeader(http.StatusNotFound)
	case r.Method == http.MethodGet:
		answer(w, current)
	case r.Method == http.MethodPatch && r.Header.Get("Content-Type") == "application/merge-patch+json":
		a.patch(w, r, name)
	default:
		w.WriteHeader(http.StatusUnsupportedMediaType)
	}
}

func (a *fakeAPI) patch(w http.ResponseWriter, r *http.Request, name string) {
	current := a.leases[name]
	var change lease
	if err := json.NewDecoder(r.Body).Decode(&change); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	if version := change.Metadata.ResourceVersion; version != "" && version != current.Metadata.ResourceVersion {
		w.WriteHeader(http.StatusConflict)
		return
	}
	version, _ := strconv.Atoi(current.Metadata.ResourceVersion)
	change.Metadata.ResourceVersion = strconv.Itoa(version + 1)
	a.leases[name] = change
	answer(w, change)
}

func answer(w http.ResponseWriter, o lease) { _ = json.NewEncoder(w).Encode(o) }

// set changes a lease as another client would.
func (a *fakeAPI) set(name, holder string, renewed time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	version, _ := strconv.Atoi(a.leases[name].Metadata.ResourceVersion)
	a.leases[name] = lease{leaseMetadata{ResourceVersion: strconv.Itoa(version + 1)}, leaseSpec{holder, microTime{renewed}}}
}

func (a *fakeAPI) lease(name string) lease {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.leases[name]
}

func (a *fakeAPI) setFail(fail func(w http.ResponseWriter, r *http.Request) bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fail = fail
}

// newTestAccount returns an account that is valid for a TLS server, with its files in a new directory.
func newTestAccount(t *testing.T, server *httptest.Server) Account {
	t.Helper()
	dir := t.TempDir()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	for name, content := range map[string]string{"ca.crt": string(ca), "token": secret + "\n", "namespace": "play"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	return Account{Dir: dir, Server: strings.TrimPrefix(server.URL, "https://")}
}

var testMember = MemberLease{Name: "etcd-main-0", ID: "8e9e05c52164694d", Cluster: "cdf818194e3a8c32", Leads: true}

// newTestLeases returns Leases for an API server that handles requests with the given handler over TLS.
func newTestLeases(t *testing.T, handler http.Handler, backups func() (BackupLeases, bool)) (*Leases, *logtest.Lines) {
	t.Helper()
	server := httptest.NewTLSServer(handler)
	t.Cleanup(server.Close)
	log := &logtest.Lines{}
	return NewLeases(LeaseOptions{
		Account: newTestAccount(t, server), Cluster: "etcd-main", Log: zerolog.New(log),
		Member: func() (MemberLease, bool) { return testMember, true }, Backups: backups,
	}), log
}

// renewOnce renews the lease of the given kind and returns the pause before the next renewal.
func (l *Leases) renewOnce(t *testing.T, kind string) (pause time.Duration) {
	t.Helper()
	for _, d := range l.tasks() {
		if d.kind == kind {
			return l.perform(t.Context(), d)
		}
	}
	require.FailNow(t, "this member does not renew the lease", kind)
	return 0
}

func (l *Leases) stateOf(t *testing.T, kind string) state.Lease {
	t.Helper()
	for _, lease := range l.States() {
		if lease.Kind == kind {
			return lease
		}
	}
	require.FailNow(t, "the lease has no state", kind)
	return state.Lease{}
}
