package kubernetes

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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
	for set, beyond := range map[string][]int{ // of the pods 0 to 4
		`{"spec":{"replicas":3}}`:                        {3, 4},
		`{"spec":{"replicas":1}}`:                        {1, 2, 3, 4},
		`{"spec":{"replicas":5}}`:                        nil,
		`{"spec":{"replicas":2,"ordinals":{"start":1}}}`: {3, 4},
		`{"spec":{"replicas":0}}`:                        nil, // it hibernates
		`{"spec":{}}`:                                    nil,
		`{"metadata":{"deletionTimestamp":"2026-11-23T12:00:00Z"},"spec":{"replicas":1}}`: nil,
	} {
		asked := ""
		s := serving(t, func(w http.ResponseWriter, r *http.Request) {
			asked = r.Method + " " + r.URL.Path
			assert.Zero(t, r.ContentLength, "a GET has no body")
			_, _ = io.WriteString(w, set)
		})
		var found []int
		for ordinal := range 5 {
			is, err := s.IsScaledDown(t.Context(), Pod{"etcd-main", ordinal})
			require.NoError(t, err)
			if is {
				found = append(found, ordinal)
			}
		}
		assert.Equal(t, beyond, found, set)
		assert.Equal(t, "GET /apis/apps/v1/namespaces/play/statefulsets/etcd-main", asked)
	}
}

func TestIsScaledDown_forbidden(t *testing.T) {
	s := serving(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) })
	beyond, err := s.IsScaledDown(t.Context(), Pod{"etcd-main", 2})
	assert.EqualError(t, err, "the service account's Role does not let it get this StatefulSet")
	assert.False(t, beyond)
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

// serving is an API server, and a pod's account there.
func serving(t *testing.T, handler http.HandlerFunc) *Server {
	t.Helper()
	server := httptest.NewTLSServer(handler)
	t.Cleanup(server.Close)
	return NewServer(mounted(t, server))
}
