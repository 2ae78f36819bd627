package kubernetes

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/certificates"
)

func TestLeases_member(t *testing.T) {
	apiServer := newAPI("etcd-main-0")
	l, _ := newTestLeases(t, apiServer, nil)
	start := time.Now().Add(-time.Microsecond)
	assert.Equal(t, heartbeat, l.renewOnce(t, OfMember))
	renewed := apiServer.lease("etcd-main-0")
	assert.Equal(t, "8e9e05c52164694d:cdf818194e3a8c32:Leader", renewed.Spec.HolderIdentity)
	assert.Equal(t, map[string]string{"member.etcd.gardener.cloud/tls-enabled": "false"}, renewed.Metadata.Annotations)
	assert.WithinRange(t, renewed.Spec.RenewTime.Time, start, time.Now())
	assert.Equal(t, []string{"PATCH etcd-main-0"}, apiServer.requests)

	testMember := MemberLease{Name: "etcd-main-0", ID: "a", Cluster: "b", PeerTLS: true}
	l.options.Member = func() (MemberLease, bool) { return testMember, true }
	l.renewOnce(t, OfMember)
	renewed = apiServer.lease("etcd-main-0")
	assert.Equal(t, "a:b:Member", renewed.Spec.HolderIdentity)
	assert.Equal(t, "true", renewed.Metadata.Annotations["member.etcd.gardener.cloud/tls-enabled"])
	current := l.stateOf(t, OfMember)
	assert.Equal(t, "a:b:Member", current.Holder)
	assert.Nil(t, current.Problem)

	l.options.Member = func() (MemberLease, bool) { return MemberLease{Name: "etcd-main-0"}, false }
	l.renewOnce(t, OfMember)
	assert.Len(t, apiServer.requests, 2)
	assert.Equal(t, "this member has no leader", l.stateOf(t, OfMember).Problem.Message)
}

func TestMicroTime(t *testing.T) {
	at := time.Date(2026, 11, 22, 4, 5, 6, 70_000, time.FixedZone("", 3600))
	content, err := json.Marshal(lease{Spec: leaseSpec{"42", microTime{at}}})
	require.NoError(t, err)
	assert.JSONEq(t, `{"spec":{"holderIdentity":"42","renewTime":"2026-11-22T03:05:06.000070Z"}}`, string(content))
	var read lease
	require.NoError(t, json.Unmarshal([]byte(`{"kind":"Lease","metadata":{"name":"x","resourceVersion":"7"},"spec":{"renewTime":null}}`), &read))
	assert.Equal(t, lease{Metadata: leaseMetadata{ResourceVersion: "7"}}, read)
}

func TestLeases_errors(t *testing.T) {
	status := func(code int) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			w.WriteHeader(code)
			_, _ = io.WriteString(w, r.Header.Get("Authorization"))
			return true
		}
	}
	for message, fail := range map[string]func(http.ResponseWriter, *http.Request) bool{
		"rejected the service account token":      status(http.StatusUnauthorized),
		"Role does not allow it to get and patch": status(http.StatusForbidden),
		"lease does not exist in the pod's":       status(http.StatusNotFound),
		"returned 500 Internal Server Error":      status(http.StatusInternalServerError),
		"returned 302 Found": func(w http.ResponseWriter, r *http.Request) bool {
			http.Redirect(w, r, "https://127.0.0.1:1/elsewhere", http.StatusFound)
			return true
		},
		"cannot decode the lease": func(w http.ResponseWriter, _ *http.Request) bool { _, _ = io.WriteString(w, "<html>"); return true },
		"cannot read the API server's response": func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "{")
			return true
		},
	} {
		apiServer := newAPI("etcd-main-0")
		apiServer.fail = fail
		l, log := newTestLeases(t, apiServer, nil)
		assert.Less(t, l.renewOnce(t, OfMember), 2*time.Second, "the first pause is short")
		current := l.stateOf(t, OfMember)
		require.NotNil(t, current.Problem, message)
		assert.Contains(t, current.Problem.Message, message)
		assert.Contains(t, log.String(), message)
		assert.NotContains(t, current.Problem.Message+log.String(), secret)
		assert.True(t, current.Renewed.IsZero())
	}
}

func TestLeases_replacedToken(t *testing.T) {
	apiServer := newAPI("etcd-main-0")
	l, log := newTestLeases(t, apiServer, nil)
	l.renewOnce(t, OfMember)
	apiServer.mu.Lock()
	apiServer.token = "another"
	apiServer.mu.Unlock()
	l.renewOnce(t, OfMember)
	require.NotNil(t, l.stateOf(t, OfMember).Problem)
	require.NoError(t, os.WriteFile(filepath.Join(l.options.Account.Dir, "token"), []byte("another"), 0o600))
	l.renewOnce(t, OfMember)
	assert.Nil(t, l.stateOf(t, OfMember).Problem)
	assert.Contains(t, log.String(), "renewed the lease after previous failures")
}

func TestLeases_lateServiceAccount(t *testing.T) {
	apiServer := newAPI("etcd-main-0")
	l, _ := newTestLeases(t, apiServer, nil)
	for _, name := range []string{"ca.crt", "token", "namespace"} {
		path := filepath.Join(l.options.Account.Dir, name)
		content, err := os.ReadFile(path)
		require.NoError(t, err)
		require.NoError(t, os.Remove(path))
		l.renewOnce(t, OfMember)
		assert.Contains(t, l.stateOf(t, OfMember).Problem.Message, name)
		if name != "ca.crt" {
			require.NoError(t, os.WriteFile(path, nil, 0o600))
			l.renewOnce(t, OfMember)
			assert.Contains(t, l.stateOf(t, OfMember).Problem.Message, name+" is empty")
		}
		require.NoError(t, os.WriteFile(path, content, 0o600))
		l.renewOnce(t, OfMember)
		assert.Nil(t, l.stateOf(t, OfMember).Problem)
	}
}

func TestLeases_anotherCA(t *testing.T) {
	apiServer := newAPI("etcd-main-0")
	l, _ := newTestLeases(t, apiServer, nil)
	another, err := os.ReadFile(certificates.NewAuthority(t, "another").Bundle())
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(l.options.Account.Dir, "ca.crt"), another, 0o600))
	l.renewOnce(t, OfMember)
	assert.Contains(t, l.stateOf(t, OfMember).Problem.Message, "certificate")
	assert.Empty(t, apiServer.requests)
}

func TestNewAccount(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	_, err := NewAccount()
	require.ErrorContains(t, err, "KUBERNETES_SERVICE_HOST")
	t.Setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
	t.Setenv("KUBERNETES_SERVICE_PORT", "443")
	account, err := NewAccount()
	require.NoError(t, err)
	assert.Equal(t, Account{Dir: mountPoint, Server: "[fd00::1]:443"}, account)
}

func TestIsScaledDown(t *testing.T) {
	for set, scaledDown := range map[string][]int{ // the values list which of the ordinals 0 to 4 are scaled down
		`{"spec":{"replicas":3}}`:                        {3, 4},
		`{"spec":{"replicas":1}}`:                        {1, 2, 3, 4},
		`{"spec":{"replicas":5}}`:                        nil,
		`{"spec":{"replicas":2,"ordinals":{"start":1}}}`: {3, 4},
		`{"spec":{"replicas":0}}`:                        nil, // the cluster hibernates, which is not a scale-down of members
		`{"spec":{}}`:                                    nil,
		`{"metadata":{"deletionTimestamp":"2026-11-23T12:00:00Z"},"spec":{"replicas":1}}`: nil,
	} {
		request := ""
		s := startServer(t, func(w http.ResponseWriter, r *http.Request) {
			request = r.Method + " " + r.URL.Path
			assert.Zero(t, r.ContentLength, "a GET has no body")
			_, _ = io.WriteString(w, set)
		})
		var found []int
		for ordinal := range 5 {
			yes, err := s.IsScaledDown(t.Context(), Pod{"etcd-main", ordinal})
			require.NoError(t, err)
			if yes {
				found = append(found, ordinal)
			}
		}
		assert.Equal(t, scaledDown, found, set)
		assert.Equal(t, "GET /apis/apps/v1/namespaces/play/statefulsets/etcd-main", request)
	}
}

func TestIsScaledDown_forbidden(t *testing.T) {
	s := startServer(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) })
	scaledDown, err := s.IsScaledDown(t.Context(), Pod{"etcd-main", 2})
	assert.EqualError(t, err, "the service account's Role does not allow it to get this StatefulSet")
	assert.False(t, scaledDown)
}

func TestParsePod(t *testing.T) {
	pod, err := ParsePod("etcd-main-2-10")
	require.NoError(t, err)
	assert.Equal(t, Pod{"etcd-main-2", 10}, pod)
	for _, name := range []string{"", "etcd", "etcd-main-", "-1", "etcd-main-x", "etcd-main-99999999999999999999"} {
		_, err := ParsePod(name)
		assert.Error(t, err, name)
	}
}

// All goroutines must share the HTTP client that the first request creates.
func TestLeases_firstRequestsAtOnce(t *testing.T) {
	l, _ := newTestLeases(t, newAPI("etcd-main-0", "etcd-main-full-snap", "etcd-main-delta-snap"), func() (BackupLeases, bool) {
		return BackupLeases{Full: 1, FullTime: time.Now(), Stored: 1, UpTo: time.Now()}, true
	})
	l.Start()
	require.Eventually(t, func() bool { return len(l.States()) == 3 }, 20*time.Second, time.Millisecond)
	l.Stop()
	for _, lease := range l.States() {
		assert.Nil(t, lease.Problem, lease.Name)
	}
}

// startServer starts an API server and returns a client for it.
func startServer(t *testing.T, handler http.HandlerFunc) *Server {
	t.Helper()
	server := httptest.NewTLSServer(handler)
	t.Cleanup(server.Close)
	return NewServer(newTestAccount(t, server))
}
