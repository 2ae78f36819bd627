package status

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"etcd-wrapper/member/state"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// If the process is suspended or starved of CPU, connections are accepted but get no response, so the client must time
// out.
func TestClientTimesOutOnASilentServer(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer silent.Close()
	client := NewClient(uint16(silent.Addr().(*net.TCPAddr).Port))
	transport := client.http.Transport.(*http.Transport)
	require.Equal(t, requestTimeout, transport.ResponseHeaderTimeout)
	transport.ResponseHeaderTimeout = 100 * time.Millisecond
	_, err = client.Fetch(t.Context())
	require.ErrorIs(t, err, ErrNoAnswer)
	require.ErrorContains(t, err, "within 5s")
}

func TestFetchAllRequestsOtherMembersOnly(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.Equal(t, "/lifecycle", r.URL.Path)
		_ = json.NewEncoder(w).Encode(Document{Pod: "etcd-main-1\x1b[2J", Ready: true, MemberID: "b"})
	}))
	defer server.Close()
	at, err := url.Parse(server.URL)
	require.NoError(t, err)
	port, err := strconv.Atoi(at.Port())
	require.NoError(t, err)
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	known := Document{MemberID: "a", Pod: "etcd-main-0", Member: state.Member{Peers: []state.Peer{
		{ID: "a", Name: "etcd-main-0"},
		{ID: "b", Name: "etcd-main-1", URLs: []string{"https://127.0.0.1:2380"}},
		{ID: "c", URLs: []string{"https://unreachable.invalid:2380"}},
		{ID: "d"},
	}}}
	fetch := func(config *tls.Config) (answers []MemberStatus) { // retried, because a busy machine may not answer in time
		require.Eventually(t, func() bool {
			answers = FetchAll(t.Context(), known, uint16(port), config)
			return len(answers) != 4 || !strings.Contains(answers[1].Error, "within 3s")
		}, 3*time.Minute, time.Millisecond)
		return answers
	}
	answers := fetch(&tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12})
	require.Len(t, answers, 4)
	assert.Equal(t, "etcd-main-0", answers[0].Document.Pod)
	assert.True(t, answers[1].Document.Ready)
	assert.NotContains(t, answers[1].Document.Pod, "\x1b", "control characters are escaped")
	assert.Equal(t, "c", answers[2].Member)
	assert.Contains(t, answers[2].Error, "no answer")
	assert.Equal(t, "the member has no peer URL", answers[3].Error)

	answers = fetch(&tls.Config{MinVersion: tls.VersionTLS12})
	assert.Contains(t, answers[1].Error, "certificate", "the server's CA is not trusted")
}

// A response must be rejected if the address belongs to another member, another pod or another program.
func TestResponseFromWrongProcessIsRejected(t *testing.T) {
	var answer Document
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(answer) }))
	defer server.Close()
	at, err := url.Parse(server.URL)
	require.NoError(t, err)
	port, err := strconv.Atoi(at.Port())
	require.NoError(t, err)
	known := Document{MemberID: "a", Member: state.Member{ClusterID: "c1", Peers: []state.Peer{
		{ID: "a"}, {ID: "b", URLs: []string{"http://127.0.0.1:2380"}},
	}}}
	for name, c := range map[string]struct {
		answer Document
		err    string // empty if the response is accepted
	}{
		"the expected member":                       {Document{MemberID: "b", Ready: true, Member: state.Member{ClusterID: "c1"}}, ""},
		"the expected member, without a cluster ID": {Document{MemberID: "b", State: "StartEtcd"}, ""},
		"a member that is starting":                 {Document{State: "Query"}, ""},
		"this member":                               {Document{MemberID: "a", Pod: "etcd-0", Ready: true, Member: state.Member{ClusterID: "c1"}}, "is from member a of cluster c1 (etcd-0): this member"},
		"a member of another cluster":               {Document{MemberID: "b", Ready: true, Member: state.Member{ClusterID: "c2"}}, "of cluster c2"},
		"another program":                           {Document{}, "has no member ID"},
		"ready without an ID":                       {Document{State: "Serving", Ready: true}, "has no member ID"},
	} {
		answer = c.answer
		got := FetchAll(t.Context(), known, uint16(port), nil)[1]
		if c.err == "" {
			assert.NotNil(t, got.Document, name)
			continue
		}
		assert.Nil(t, got.Document, name)
		assert.Contains(t, got.Error, c.err, name)
	}
}

// If a machine is lost, packets to it are dropped silently. The error must then not claim that a process is listening.
func TestFetchAll_unreachableMember(t *testing.T) {
	expired, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	known := Document{MemberID: "a", Member: state.Member{Peers: []state.Peer{{ID: "b", URLs: []string{"http://127.0.0.1:2380"}}}}}
	text := FetchAll(expired, known, 1, nil)[0].Error
	assert.Contains(t, text, "no answer from etcd-wrapper at http://127.0.0.1:1 within 3s")
	assert.Contains(t, text, "unreachable")
	assert.NotContains(t, text, "a process listens")
}
