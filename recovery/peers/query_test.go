package peers

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/cmd/suites/certificates"
)

// Add must report that the server requires a client certificate, even though gRPC reports only a timeout.
func TestAdd_serverThatRequiresACertificate(t *testing.T) {
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert, MinVersion: tls.VersionTLS12}
	server.StartTLS()
	defer server.Close()
	tc := newTestCluster(t)
	tc.peers.client = server.Client()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	err := tc.peers.Add(ctx, &Survey{Cluster: "abc", Members: []Member{member(0xc0, "m-0", server.URL)}})
	require.ErrorContains(t, err, server.URL)
	require.ErrorContains(t, err, "certificate required")
	require.ErrorContains(t, err, "set --etcd-client-cert-path to a certificate that the other members accept")
}

// Query must also check this member's URLs in the member list, because another process with this member's data may be
// listening there.
func TestQuery_checksTheListedURLs(t *testing.T) {
	tc := newTestCluster(t)
	elsewhere := httptest.NewServer(nil) // simulates another process that listens at this member's URL
	defer elsewhere.Close()
	tc.list[2] = member(ownID, "m-2", elsewhere.URL)
	here := httptest.NewServer(nil)
	at, err := url.Parse(here.URL)
	require.NoError(t, err)
	here.Close()
	tc.peers.config.ListenPeerUrls, tc.peers.urls, tc.peers.checkOwnURLs = []url.URL{*at}, []string{here.URL}, tc.peers.requestOwnURLs
	tc.peers.listed = append(tc.peers.listed, elsewhere.URL, here.URL)
	require.ErrorContains(t, tc.query().Blocked, "this member cannot reach itself at its peer URL: "+elsewhere.URL)
	tc.list[2] = member(ownID, "m-2", here.URL)
	tc.now = tc.now.Add(time.Second)
	require.NoError(t, tc.query().Blocked)
}

// It must be possible to replace a member of five even if another member has lost its volume and cannot provide
// metrics.
func TestQuery_anotherMemberWithoutEtcd(t *testing.T) {
	for holds, free := range map[Volume]bool{Nothing: true, Unusable: true, Older: true, Restores: true, Data: false} {
		tc := newTestCluster(t)
		tc.add(0xc3, "m-3")
		tc.add(0xc4, "m-4").status = &Status{Name: "m-4", Volume: holds}
		c := tc.query()
		assert.Equal(t, Started, c.Membership)
		assert.Equal(t, free, c.Blocked == nil, "%s: %v", holds, c.Blocked)
	}
	tc := newTestCluster(t)
	tc.add(0xc3, "m-3")
	tc.add(0xc4, "m-4").unreachable.Store(true)
	requireMessage(t, tc.query().Blocked, "checking for 1m0s whether another process is using this member's data: cannot read the connections of m-4")
}

// Query must report the higher of the revisions in the database and in the log.
func TestQuery_revisionsWithoutQuorum(t *testing.T) {
	for name, test := range map[string]struct {
		metrics string
		reach   int64
		message string
	}{
		"applied revision":           {"etcd_debugging_mvcc_current_revision 1201\n", 1201, "m-0 is at revision 1201"},
		"scientific notation":        {"etcd_debugging_mvcc_current_revision 1.234567e+06\n", 1234567, "m-0 is at revision 1234567"},
		"higher revision in the log": {"etcd_debugging_mvcc_current_revision 1201\netcd_wrapper_opened_revision 1203\n", 1203, "revision 1203"},
		"no revision":                {"# nothing\n", 0, "the revision of m-0 is unknown (no revision in the metrics)"},
	} {
		t.Run(name, func(t *testing.T) {
			tc := newTestCluster(t)
			tc.fakes[0].metrics = test.metrics
			tc.fakes[1].unreachable.Store(true)
			c := tc.peers.Query(t.Context(), selfWithData(0xabc, ownID, 3))
			assert.Equal(t, NoQuorum, c.Membership)
			assert.Equal(t, test.reach, c.Revision)
			require.ErrorContains(t, c.Missing, test.message)
			require.ErrorContains(t, c.Missing, "m-1 does not respond")
			c = tc.peers.Query(t.Context(), selfWithData(0xdef, ownID, 3))
			assert.Zero(t, c.Revision, "revisions of another cluster do not count")
		})
	}
}

// metricOf returns one of the metrics that the wrapper adds to etcd's own.
func metricOf(t *testing.T, name string) *dto.Metric {
	t.Helper()
	families, err := prometheus.DefaultGatherer.Gather()
	require.NoError(t, err)
	at := slices.IndexFunc(families, func(family *dto.MetricFamily) bool { return family.GetName() == name })
	require.GreaterOrEqual(t, at, 0, "%s is not registered", name)
	require.Len(t, families[at].GetMetric(), 1)
	return families[at].GetMetric()[0]
}

func TestPublishOpened_revision(t *testing.T) {
	PublishOpened(77, archive.Identity{})
	tc := newTestCluster(t)
	tc.fakes[0].metrics = fmt.Sprintf("etcd_wrapper_opened_revision %v\n", metricOf(t, "etcd_wrapper_opened_revision").GetGauge().GetValue())
	tc.fakes[1].unreachable.Store(true)
	assert.Equal(t, int64(77), tc.peers.Query(t.Context(), selfWithData(0xabc, ownID, 3)).Revision)
}

// Query must return the published identity, because etcd's cluster ID can be the same for two clusters.
func TestPublishOpened_identity(t *testing.T) {
	PublishOpened(77, archive.Identity{Cluster: "0a1b", Generation: 3})
	label := metricOf(t, "etcd_wrapper_opened_cluster").GetLabel()
	page := fmt.Sprintf("etcd_wrapper_opened_cluster{%s=%q,%s=%q} 1\n", label[0].GetName(), label[0].GetValue(), label[1].GetName(), label[1].GetValue())
	tc := newTestCluster(t)
	assert.Empty(t, tc.query().ID, "no member publishes an identity")
	tc.fakes[0].metrics = page
	c := tc.query()
	assert.Equal(t, "0a1b", c.ID)
	assert.Equal(t, 3, c.Generation)
	assert.Zero(t, c.Size, "no member publishes the size of its database")
	tc.fakes[0].metrics, tc.fakes[1].metrics = page+"etcd_mvcc_db_total_size_in_bytes 7.7e+07\n", "etcd_mvcc_db_total_size_in_bytes 20480\n"
	assert.Equal(t, int64(77e6), tc.query().Size)
	tc.fakes[1].metrics = strings.Replace(page, "0a1b", "c0ffee", 1)
	require.ErrorContains(t, tc.query().Blocked, "the other members belong to different clusters")
}

const unsafeText = "\x1b[2Jall is well\r\n"

// Query must reject unsafe member names and URLs, because they appear in the log, in published documents and in
// etcd's configuration.
func TestQuery_invalidMembers(t *testing.T) {
	for name, spoil := range map[string]func(list []Member) []Member{
		"name with an escape sequence": func(list []Member) []Member { list[0].Name = unsafeText; return list },
		"very long name":               func(list []Member) []Member { list[0].Name = strings.Repeat("m", 1<<20); return list },
		"invalid URL":                  func(list []Member) []Member { list[1].ClientURLs = []string{unsafeText}; return list },
		"very long URL": func(list []Member) []Member {
			list[1].PeerURLs = append(list[1].PeerURLs, "http://"+strings.Repeat("m", 1<<20))
			return list
		},
		"file URL": func(list []Member) []Member { list[0].ClientURLs = []string{"file://host/etc"}; return list },
		"too many members": func(list []Member) []Member {
			for len(list) <= maxMembers {
				list = append(list, list[0])
			}
			return list
		},
		"no members": func([]Member) []Member { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tc := newTestCluster(t)
			tc.changeList(1, spoil)
			c := tc.query()
			assert.Equal(t, NoQuorum, c.Membership, "one valid response is not a quorum")
			require.ErrorContains(t, c.Missing, "m-1 does not respond (ignoring the response from "+tc.fakes[1].URL+": ")
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
	tc := newTestCluster(t)
	tc.fakes[1].version = unsafeText + strings.Repeat("9", 1<<20)
	err := tc.query().Blocked
	require.ErrorContains(t, err, "[2Jall is well")
	assertShort(t, err.Error())
}

func TestWithHint_unreadableError(t *testing.T) {
	p := &Peers{}
	err := p.withHint(status.Error(codes.Unknown, unsafeText+strings.Repeat("no", 1<<20)), "")
	require.ErrorContains(t, err, "all is well")
	assertShort(t, err.Error())
	assert.NoError(t, p.withHint(nil, ""))
	assert.ErrorIs(t, p.withHint(assert.AnError, ""), assert.AnError)
}

func TestQuery_unreadableResponse(t *testing.T) {
	tc := newTestCluster(t)
	tc.peers.others["m-1"] = []string{newRawServer(t, strings.Repeat(unsafeText, 100))}
	assertShort(t, tc.query().Missing.Error())
}

// Query must not follow redirects, because they lead to a different process.
func TestQuery_redirect(t *testing.T) {
	tc := newTestCluster(t)
	redirecting := httptest.NewServer(http.RedirectHandler(tc.fakes[1].URL+"/members", http.StatusFound))
	defer redirecting.Close()
	tc.peers.others["m-1"] = []string{redirecting.URL}
	require.ErrorContains(t, tc.query().Missing, "m-1 does not respond ("+redirecting.URL+"/members: status 302)")
}

func TestQuery_normalizesTheClusterID(t *testing.T) {
	tc := newTestCluster(t)
	tc.fakes[0].cluster = strings.Repeat("0", 1000) + "ABC"
	assert.Equal(t, "abc", tc.query().Cluster)
}

func TestEndpoints_readablePassword(t *testing.T) {
	at := func(urls ...string) *Survey {
		c := &Survey{Own: member(ownID, "m-2", "http://m-2")}
		for i, each := range urls {
			c.Members = append(c.Members, member(uint64(i+1), "m", each))
		}
		c.Members = append(c.Members, c.Own)
		return c
	}
	for name, test := range map[string]struct {
		urls, endpoints []string // client URLs of the other members, and which of them are expected to be used
		sent            bool     // whether the password is sent
	}{
		"over TLS":                     {[]string{"https://a:2379", "https://b:2379"}, []string{"https://a:2379", "https://b:2379"}, true},
		"loopback addresses":           {[]string{"http://127.0.0.1:2379", "http://[::1]:1", "http://localhost:2"}, []string{"http://127.0.0.1:2379", "http://[::1]:1", "http://localhost:2"}, true},
		"some without TLS":             {[]string{"http://a:2379", "https://b:2379"}, []string{"https://b:2379"}, true},
		"all without TLS":              {[]string{"http://a:2379", "http://10.0.0.1:2379"}, []string{"http://a:2379", "http://10.0.0.1:2379"}, false},
		"host that resembles loopback": {[]string{"http://127.0.0.1.example.com:2379"}, []string{"http://127.0.0.1.example.com:2379"}, false},
		"unknown host":                 {[]string{"https://stranger:2379"}, []string{"https://stranger:2379"}, false},
		"unknown and known host":       {[]string{"https://stranger:2379", "https://b:2379"}, []string{"https://b:2379"}, true},
		"invalid URL":                  {[]string{"http://[::1", "https://b"}, []string{"https://b"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			p := &Peers{connections: connections{Options: Options{User: "root", Password: "secret"}}, hosts: map[string]bool{"a": true, "b": true, "127.0.0.1": true, "::1": true, "localhost": true}}
			urls, user, password := p.endpoints(at(test.urls...))
			assert.Equal(t, test.endpoints, urls)
			assert.Equal(t, test.sent, user == "root" && password == "secret")
			assert.Equal(t, test.sent, user != "" || password != "")
		})
	}
	urls, user, _ := (&Peers{}).endpoints(at("http://a", "https://b"))
	assert.Equal(t, []string{"http://a", "https://b"}, urls, "without a password, all URLs are used")
	assert.Empty(t, user)
}

// The password may be sent to any client URL listed by verified peers, but not if auto-tls is used, because a
// different process could receive it.
func TestEndpoints_verifiedPeers(t *testing.T) {
	for _, test := range []struct {
		peer, client       string // URL of the queried peer, and the client URL that it lists
		anyPeer, anyServer bool
		sent               bool // whether the password is sent to the client URL
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
		assert.Equal(t, test.sent, user+password == "rootsecret", "%+v", test)
		assert.Equal(t, test.sent, user+password != "", "%+v", test)
	}
}

func TestWithHint_authentication(t *testing.T) {
	p := &Peers{connections: connections{Options: Options{User: "root", Password: "secret"}}}
	for _, err := range authErrors {
		require.ErrorContains(t, p.withHint(err, ""), "ETCDCTL_PASSWORD is only sent over verified https")
		require.ErrorContains(t, p.withHint(err, "root"), "set ETCDCTL_USER=root and ETCDCTL_PASSWORD")
		require.ErrorContains(t, (&Peers{}).withHint(err, ""), "set ETCDCTL_USER=root and ETCDCTL_PASSWORD")
	}
	assert.NotContains(t, p.withHint(errors.New("no"), "").Error(), "ETCDCTL")
}

func TestWithHint_unhealthyCluster(t *testing.T) {
	for _, cause := range []error{rpctypes.ErrUnhealthy, rpctypes.ErrMemberNotEnoughStarted} {
		err := (&Peers{}).withHint(cause, "")
		require.ErrorIs(t, err, cause)
		assert.ErrorContains(t, err, "start the members that are down, or remove a member that is gone for good")
	}
}

func autoTLS(config *embed.Config) { config.PeerAutoTLS = true }

// With auto-tls, members that are not running etcd must be able to query each other with self-signed certificates.
func TestAutoTLS_members(t *testing.T) {
	all := newWaitingMembersWith(t, "https", autoTLS)
	for _, p := range all {
		require.NotNil(t, p)
		p.Publish(Self{Volume: Nothing})
	}
	c := all[0].Query(t.Context(), Self{Volume: Nothing})
	assert.NoError(t, c.Missing)
	assert.Equal(t, AllEmpty, c.Membership)
	all[1].Publish(Self{Volume: Data})
	c = all[0].Query(t.Context(), Self{Volume: Nothing})
	assert.Equal(t, Unknown, c.Membership)
	require.NoError(t, all[2].requestOwnURLs(t.Context(), all[2].urls))
}

// With auto-tls, the status must not be served without encryption.
func TestAutoTLS_noPlainText(t *testing.T) {
	all := newWaitingMembersWith(t, "https", autoTLS)
	all[0].Publish(Self{Volume: Nothing})
	at, err := url.Parse(all[0].urls[0])
	require.NoError(t, err)
	at.Scheme = "http"
	_, err = fetch(t.Context(), http.DefaultClient, at.String()+statusPath, &Status{})
	require.Error(t, err)
}

// If certificates are configured, auto-tls must be ignored, and the certificates of other members must be verified.
func TestAutoTLS_withCertificates(t *testing.T) {
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	pair := certificates.NewAuthority(t, "peers").Issue("peer")
	all := newWaitingMembersWith(t, "https", func(config *embed.Config) {
		config.PeerAutoTLS, config.ClientAutoTLS = true, true
		config.PeerTLSInfo.CertFile, config.PeerTLSInfo.KeyFile = pair.Cert, pair.Key
		config.ClientTLSInfo.CertFile, config.ClientTLSInfo.KeyFile = pair.Cert, pair.Key
	})
	for _, by := range []*http.Client{all[0].peer, all[0].client} {
		var unknown *tls.CertificateVerificationError
		_, err := fetch(t.Context(), by, server.URL, nil)
		assert.ErrorAs(t, err, &unknown)
	}
}

// Without auto-tls, a self-signed certificate must not be trusted.
func TestAutoTLS_selfSignedCertificates(t *testing.T) {
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	for _, test := range []struct{ peer, client bool }{{false, false}, {true, false}, {false, true}} {
		all := newWaitingMembersWith(t, "https", func(config *embed.Config) { config.PeerAutoTLS, config.ClientAutoTLS = test.peer, test.client })
		for _, from := range []struct {
			by     *http.Client
			trusts bool
		}{{all[0].peer, test.peer}, {all[0].client, test.client}} {
			var unknown *tls.CertificateVerificationError
			_, err := fetch(t.Context(), from.by, server.URL, nil)
			if from.trusts {
				assert.ErrorContains(t, err, "status 404")
			} else {
				assert.ErrorAs(t, err, &unknown)
			}
		}
	}
}

// Query must use a CA bundle that was replaced while the member is waiting.
func TestQuery_replacedCAs(t *testing.T) {
	right, wrong := certificates.NewAuthority(t, "peers"), certificates.NewAuthority(t, "others")
	pair, bundle := right.Issue("peer"), filepath.Join(t.TempDir(), "bundle.pem")
	renew := func(by *certificates.Authority) {
		content, err := os.ReadFile(by.Bundle())
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(bundle, content, 0o600))
	}
	renew(wrong)
	all := newWaitingMembersWith(t, "https", func(config *embed.Config) {
		config.PeerTLSInfo = transport.TLSInfo{CertFile: pair.Cert, KeyFile: pair.Key, TrustedCAFile: bundle, ClientCertAuth: true}
	})
	survey := func() (last Survey) {
		for _, p := range all {
			last = p.Query(t.Context(), Self{Volume: Nothing})
		}
		return last
	}
	assert.ErrorContains(t, survey().Missing, "unknown authority")
	require.NoError(t, os.WriteFile(bundle, nil, 0o600)) // the bundle may be empty for a moment during a renewal
	survey()
	renew(right)
	survey()
	c := survey()
	assert.NoError(t, c.Missing)
	assert.Equal(t, AllEmpty, c.Membership)
}
