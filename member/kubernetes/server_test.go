package kubernetes

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/certificates"
)

func TestLeases_member(t *testing.T) {
	there := newAPI("etcd-main-0")
	l, _ := over(t, there, nil)
	began := time.Now().Add(-time.Microsecond)
	assert.Equal(t, heartbeat, l.once(t, OfMember))
	is := there.lease("etcd-main-0")
	assert.Equal(t, "8e9e05c52164694d:cdf818194e3a8c32:Leader", is.Spec.HolderIdentity)
	assert.Equal(t, map[string]string{"member.etcd.gardener.cloud/tls-enabled": "false"}, is.Metadata.Annotations)
	assert.WithinRange(t, is.Spec.RenewTime.Time, began, time.Now())
	assert.Equal(t, []string{"PATCH etcd-main-0"}, there.asked)

	alive := MemberLease{Name: "etcd-main-0", ID: "a", Cluster: "b", PeerTLS: true}
	l.options.Member = func() (MemberLease, bool) { return alive, true }
	l.once(t, OfMember)
	is = there.lease("etcd-main-0")
	assert.Equal(t, "a:b:Member", is.Spec.HolderIdentity)
	assert.Equal(t, "true", is.Metadata.Annotations["member.etcd.gardener.cloud/tls-enabled"])
	fact := l.fact(t, OfMember)
	assert.Equal(t, "a:b:Member", fact.Holder)
	assert.Nil(t, fact.Problem)
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
	for says, trouble := range map[string]func(http.ResponseWriter, *http.Request) bool{
		"rejects the service account's token": status(http.StatusUnauthorized),
		"Role does not let it get and patch":  status(http.StatusForbidden),
		"there is no such lease in the pod's": status(http.StatusNotFound),
		"answers 500 Internal Server Error":   status(http.StatusInternalServerError),
		"answers 302 Found": func(w http.ResponseWriter, r *http.Request) bool {
			http.Redirect(w, r, "https://127.0.0.1:1/elsewhere", http.StatusFound)
			return true
		},
		"is not a lease": func(w http.ResponseWriter, _ *http.Request) bool { _, _ = io.WriteString(w, "<html>"); return true },
		"broke off": func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "{")
			return true
		},
	} {
		there := newAPI("etcd-main-0")
		there.trouble = trouble
		l, log := over(t, there, nil)
		assert.Less(t, l.once(t, OfMember), 2*time.Second, "the first pause is a short one")
		fact := l.fact(t, OfMember)
		require.NotNil(t, fact.Problem, says)
		assert.Contains(t, fact.Problem.Message, says)
		assert.Contains(t, log.String(), says)
		assert.NotContains(t, fact.Problem.Message+log.String(), secret)
		assert.True(t, fact.Renewed.IsZero())
	}
}

func TestLeases_replacedToken(t *testing.T) {
	there := newAPI("etcd-main-0")
	l, log := over(t, there, nil)
	l.once(t, OfMember)
	there.mu.Lock()
	there.token = "another"
	there.mu.Unlock()
	l.once(t, OfMember)
	require.NotNil(t, l.fact(t, OfMember).Problem)
	require.NoError(t, os.WriteFile(filepath.Join(l.options.Account.Dir, "token"), []byte("another"), 0o600))
	l.once(t, OfMember)
	assert.Nil(t, l.fact(t, OfMember).Problem)
	assert.Contains(t, log.String(), "renewed again")
}

func TestLeases_lateServiceAccount(t *testing.T) {
	there := newAPI("etcd-main-0")
	l, _ := over(t, there, nil)
	for _, name := range []string{"ca.crt", "token", "namespace"} {
		path := filepath.Join(l.options.Account.Dir, name)
		content, err := os.ReadFile(path)
		require.NoError(t, err)
		require.NoError(t, os.Remove(path))
		l.once(t, OfMember)
		assert.Contains(t, l.fact(t, OfMember).Problem.Message, name)
		if name != "ca.crt" {
			require.NoError(t, os.WriteFile(path, nil, 0o600))
			l.once(t, OfMember)
			assert.Contains(t, l.fact(t, OfMember).Problem.Message, name+" is empty")
		}
		require.NoError(t, os.WriteFile(path, content, 0o600))
		l.once(t, OfMember)
		assert.Nil(t, l.fact(t, OfMember).Problem)
	}
}

func TestLeases_anotherCA(t *testing.T) {
	there := newAPI("etcd-main-0")
	l, _ := over(t, there, nil)
	require.NoError(t, os.WriteFile(filepath.Join(l.options.Account.Dir, "ca.crt"), []byte(anotherCA(t)), 0o600))
	l.once(t, OfMember)
	assert.Contains(t, l.fact(t, OfMember).Problem.Message, "certificate")
	assert.Empty(t, there.asked)
}

// anotherCA is a certificate that has signed nothing here.
func anotherCA(t *testing.T) string {
	t.Helper()
	content, err := os.ReadFile(certificates.NewAuthority(t, "another").Bundle())
	require.NoError(t, err)
	return string(content)
}
