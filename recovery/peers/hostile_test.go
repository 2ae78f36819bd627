package peers

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const hostile = "\x1b[2Jall is well\r\n"

// Member names appear in the log, in published documents and in etcd's configuration.
func TestQuery_invalidMembers(t *testing.T) {
	for name, spoil := range map[string]func(list []Member) []Member{
		"a name that a terminal obeys": func(list []Member) []Member { list[0].Name = hostile; return list },
		"a name without an end":        func(list []Member) []Member { list[0].Name = strings.Repeat("m", 1<<20); return list },
		"a URL that is none":           func(list []Member) []Member { list[1].ClientURLs = []string{hostile}; return list },
		"a URL without an end": func(list []Member) []Member {
			list[1].PeerURLs = append(list[1].PeerURLs, "http://"+strings.Repeat("m", 1<<20))
			return list
		},
		"a URL of a file": func(list []Member) []Member { list[0].ClientURLs = []string{"file://host/etc"}; return list },
		"more members than there can be": func(list []Member) []Member {
			for len(list) <= maxMembers {
				list = append(list, list[0])
			}
			return list
		},
		"no members": func([]Member) []Member { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTown(t)
			w.alter(1, spoil)
			c := w.ask()
			assert.Equal(t, Claimed, c.Membership, "one answer is no quorum")
			require.ErrorContains(t, c.Missing, "m-1 does not respond (ignoring the response from "+w.fakes[1].URL+": ")
			assertShort(t, c.Missing.Error())
		})
	}
}

func assertShort(t *testing.T, text string) {
	t.Helper()
	assert.Less(t, len(text), 1000)
	assert.False(t, strings.ContainsAny(text, "\x1b\r\n"), "%q", text)
}

func TestQuery_unreadableVersion(t *testing.T) {
	w := newTown(t)
	w.fakes[1].runs = hostile + strings.Repeat("9", 1<<20)
	err := w.ask().Blocked
	require.ErrorContains(t, err, "[2Jall is well")
	assertShort(t, err.Error())
}

func TestWithHint_unreadableError(t *testing.T) {
	p := &Peers{}
	err := p.withHint(status.Error(codes.Unknown, hostile+strings.Repeat("no", 1<<20)), "")
	require.ErrorContains(t, err, "all is well")
	assertShort(t, err.Error())
	assert.NoError(t, p.withHint(nil, ""))
	assert.ErrorIs(t, p.withHint(assert.AnError, ""), assert.AnError)
}

func TestQuery_unreadableResponse(t *testing.T) {
	w := newTown(t)
	w.peers.others["m-1"] = []string{liar(t, strings.Repeat(hostile, 100))}
	assertShort(t, w.ask().Missing.Error())
}

// A process at the target of a redirect does not count as the member.
func TestQuery_redirect(t *testing.T) {
	w := newTown(t)
	sends := httptest.NewServer(http.RedirectHandler(w.fakes[1].URL+"/members", http.StatusFound))
	defer sends.Close()
	w.peers.others["m-1"] = []string{sends.URL}
	require.ErrorContains(t, w.ask().Missing, "m-1 does not respond ("+sends.URL+"/members: status 302)")
}

func TestQuery_normalizesTheClusterID(t *testing.T) {
	w := newTown(t)
	w.fakes[0].cluster = strings.Repeat("0", 1000) + "ABC"
	assert.Equal(t, "abc", w.ask().Cluster)
}

func TestEndpoints_readablePassword(t *testing.T) {
	at := func(urls ...string) *Survey {
		c := &Survey{Own: member(own, "m-2", "http://m-2")}
		for i, each := range urls {
			c.Members = append(c.Members, member(uint64(i+1), "m", each))
		}
		c.Members = append(c.Members, c.Own)
		return c
	}
	for name, test := range map[string]struct {
		urls, goes []string
		with       bool // whether the password is sent
	}{
		"over TLS":                      {[]string{"https://a:2379", "https://b:2379"}, []string{"https://a:2379", "https://b:2379"}, true},
		"within this machine":           {[]string{"http://127.0.0.1:2379", "http://[::1]:1", "http://localhost:2"}, []string{"http://127.0.0.1:2379", "http://[::1]:1", "http://localhost:2"}, true},
		"where some are plain":          {[]string{"http://a:2379", "https://b:2379"}, []string{"https://b:2379"}, true},
		"where all are plain":           {[]string{"http://a:2379", "http://10.0.0.1:2379"}, []string{"http://a:2379", "http://10.0.0.1:2379"}, false},
		"to what looks like it":         {[]string{"http://127.0.0.1.example.com:2379"}, []string{"http://127.0.0.1.example.com:2379"}, false},
		"to whom an answer alone names": {[]string{"https://stranger:2379"}, []string{"https://stranger:2379"}, false},
		"to some whom an answer names":  {[]string{"https://stranger:2379", "https://b:2379"}, []string{"https://b:2379"}, true},
		"to what is no URL":             {[]string{"http://[::1", "https://b"}, []string{"https://b"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			p := &Peers{connections: connections{Options: Options{User: "root", Password: "secret"}}, hosts: map[string]bool{"a": true, "b": true, "127.0.0.1": true, "::1": true, "localhost": true}}
			urls, user, password := p.endpoints(at(test.urls...))
			assert.Equal(t, test.goes, urls)
			assert.Equal(t, test.with, user == "root" && password == "secret")
			assert.Equal(t, test.with, user != "" || password != "")
		})
	}
	urls, user, _ := (&Peers{}).endpoints(at("http://a", "https://b"))
	assert.Equal(t, []string{"http://a", "https://b"}, urls, "there is no password")
	assert.Empty(t, user)
}

// Verified peers may list any client URL, but with auto-tls a different process could receive the password.
func TestEndpoints_verifiedPeers(t *testing.T) {
	for _, test := range []struct {
		peer, client       string // URL of the queried peer, and the client URL that it lists
		anyPeer, anyServer bool
		goes               bool
	}{
		{"https://m-0:2380", "https://elsewhere:2379", false, false, true},
		{"http://m-0:2380", "https://elsewhere:2379", false, false, false},
		{"https://m-0:2380", "https://elsewhere:2379", true, false, false},
		{"http://m-0:2380", "https://m-0", false, false, true},
		{"http://m-0:2380", "https://m-0", false, true, false},
	} {
		p := &Peers{
			connections: connections{Options: Options{User: "root", Password: "secret"}, anyPeer: test.anyPeer, anyServer: test.anyServer},
			hosts:       map[string]bool{"m-0": true}, others: map[string][]string{"m-0": {test.peer}},
		}
		urls, user, password := p.endpoints(&Survey{Members: []Member{member(0xc0, "m-0", test.client)}})
		assert.Equal(t, []string{test.client}, urls)
		assert.Equal(t, test.goes, user+password == "rootsecret", "%+v", test)
		assert.Equal(t, test.goes, user+password != "", "%+v", test)
	}
}

func TestWithHint_authentication(t *testing.T) {
	p := &Peers{connections: connections{Options: Options{User: "root", Password: "secret"}}}
	for _, is := range authErrors {
		require.ErrorContains(t, p.withHint(is, ""), "ETCDCTL_PASSWORD is only sent over verified https")
		require.ErrorContains(t, p.withHint(is, "root"), "set ETCDCTL_USER=root and ETCDCTL_PASSWORD")
		require.ErrorContains(t, (&Peers{}).withHint(is, ""), "set ETCDCTL_USER=root and ETCDCTL_PASSWORD")
	}
	assert.NotContains(t, p.withHint(errors.New("no"), "").Error(), "ETCDCTL")
}

func TestWithHint_unhealthyCluster(t *testing.T) {
	for _, is := range []error{rpctypes.ErrUnhealthy, rpctypes.ErrMemberNotEnoughStarted} {
		err := (&Peers{}).withHint(is, "")
		require.ErrorIs(t, err, is)
		assert.ErrorContains(t, err, "start the members that are down, or remove a member that is gone for good")
	}
}
