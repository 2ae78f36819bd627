package peers

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/server/v3/embed"

	"etcd-wrapper/bootstrap/datadir"
	"etcd-wrapper/exitcode"
	"etcd-wrapper/member/dataversion"
)

// newWaitingMembers returns the three members of a cluster in which no member is running etcd.
func newWaitingMembers(t *testing.T) (all []*Peers) {
	t.Helper()
	return newWaitingMembersWith(t, "http", func(*embed.Config) {})
}

func newWaitingMembersWith(t *testing.T, scheme string, configure func(*embed.Config)) (all []*Peers) {
	t.Helper()
	config := func(i int) *embed.Config {
		config := embed.NewConfig()
		config.Name = fmt.Sprintf("m-%d", i)
		configure(config)
		return config
	}
	var pairs []string
	var at []*url.URL
	for i := range 3 {
		held := httptest.NewServer(nil)
		here, err := url.Parse(held.URL)
		require.NoError(t, err)
		here.Scheme = scheme
		at, pairs = append(at, here), append(pairs, fmt.Sprintf("m-%d=%s", i, here))
		// Keep the listeners open until all members have a port, so that no port is used twice.
		defer held.Close()
	}
	for i := range 3 {
		c := config(i)
		c.InitialCluster, c.AdvertisePeerUrls, c.ListenPeerUrls = strings.Join(pairs, ","), []url.URL{*at[i]}, []url.URL{*at[i]}
		p, err := New(c, Options{})
		require.NoError(t, err)
		t.Cleanup(p.Close)
		all = append(all, p)
	}
	return all
}

func TestQuery_newCluster(t *testing.T) {
	ask := func(p *Peers, holds Volume) Membership {
		c := p.Query(t.Context(), Self{Volume: holds})
		return c.Membership
	}
	all := newWaitingMembers(t)
	assert.Equal(t, Unknown, ask(all[0], Nothing), "no other member responds")
	assert.Equal(t, Unknown, ask(all[1], Nothing), "the third member may have data")
	assert.Equal(t, AllEmpty, ask(all[2], Nothing))
	assert.Equal(t, AllEmpty, ask(all[0], Nothing))
	assert.Equal(t, AllLost, ask(all[1], Unusable))
	assert.Equal(t, AllLost, ask(all[2], Nothing), "one member has had data")
	assert.Equal(t, Unknown, ask(all[0], Data), "a member with data creates no cluster")
	assert.Equal(t, Unknown, ask(all[2], Nothing), "the others wait for the member with data")
}

func TestQuery_sameRestore(t *testing.T) {
	ask := func(p *Peers, id string) Membership {
		c := p.Query(t.Context(), Self{Volume: Data, Restore: id})
		return c.Membership
	}
	all := newWaitingMembers(t)
	assert.Equal(t, Unknown, ask(all[0], "back"))
	assert.Equal(t, Unknown, ask(all[1], "back"))
	assert.Equal(t, Unknown, ask(all[2], "another"))
	assert.Equal(t, Unknown, ask(all[0], "back"))
	assert.Equal(t, RestoreAgreed, ask(all[2], "back"))
	assert.Equal(t, RestoreAgreed, ask(all[0], "back"))
	assert.Equal(t, Unknown, ask(all[1], ""), "the member no longer requests the restore")
	assert.Equal(t, Unknown, ask(all[0], "back"))
}

// Two members without data must wait for the third, because they may belong to a growing cluster in which the member
// with the data is restarting.
func TestQuery_quorumWithoutData(t *testing.T) {
	all := newWaitingMembers(t)
	now := time.Now()
	for _, p := range all {
		p.now = func() time.Time { return now }
	}
	all[1].Publish(Self{Volume: Nothing})
	for range 3 {
		c := all[0].Query(t.Context(), Self{Volume: Nothing})
		assert.Equal(t, Unknown, c.Membership, "the third member may have data")
		assert.ErrorContains(t, c.Missing, "m-2 does not respond")
		now = now.Add(time.Hour)
	}
	all[2].Publish(Self{Volume: Nothing})
	c := all[0].Query(t.Context(), Self{Volume: Nothing})
	assert.Equal(t, AllEmpty, c.Membership)
	assert.NoError(t, c.Missing)
}

func TestQuery_uploaded(t *testing.T) {
	all := newWaitingMembers(t)
	ask := func(p *Peers, uploaded bool) bool {
		return p.Query(t.Context(), Self{Volume: Unusable, Uploaded: uploaded}).Uploaded
	}
	ask(all[0], true)
	ask(all[1], false)
	assert.False(t, ask(all[2], true))
	ask(all[1], true)
	assert.True(t, ask(all[2], true))
	assert.True(t, ask(all[0], false), "only the other members count")
	assert.False(t, ask(all[1], true))
}

// If a running member has no quorum, its list must not lead to a new cluster, because the member may have data.
func TestWithoutCluster_runningMembers(t *testing.T) {
	p := &Peers{others: map[string][]string{"m-0": nil, "m-1": nil}}
	none := Status{Volume: Nothing}
	assert.Equal(t, AllEmpty, p.withoutCluster(Self{Volume: Nothing}, nil, []Status{none, none}))
	assert.Equal(t, SomeStarted, p.withoutCluster(Self{Volume: Nothing}, []*response{{}}, []Status{none}))
	assert.Equal(t, Unknown, p.withoutCluster(Self{Volume: Unusable}, []*response{{}}, []Status{none}))
	assert.Equal(t, Unknown, p.withoutCluster(Self{Volume: Nothing}, []*response{{}}, nil), "the third member may have data")
}

func TestWithoutCluster(t *testing.T) {
	p := &Peers{others: map[string][]string{"m-0": nil, "m-1": nil}}
	for _, test := range []struct {
		own, one, other Volume // volumes of this member, m-0 and m-1
		want            Membership
		message         string
	}{
		{Nothing, Nothing, Unusable, AllLost, ""},
		{Older, Nothing, Unusable, AllLost, ""},
		{Older, Older, Older, AllLost, ""},
		{Nothing, Nothing, Older, AllLost, ""},
		{Data, Older, Older, Unknown, ""},
		{Older, Older, Data, Unknown, "m-1 has data but is not running etcd yet"},
		{Nothing, Nothing, Restores, Unknown, "m-1 is about to restore the backup"},
		{Restores, Nothing, Restores, AllLost, ""},
		{Restores, Nothing, Nothing, AllLost, ""},
		{Restores, Restores, Data, Unknown, "m-1 has data but is not running etcd yet"},
		{Nothing, Nothing, "", Unknown, ""},
		{Nothing, Nothing, "state of a later version", Unknown, ""},
	} {
		calls := []Status{{Name: "m-0", Volume: test.one}, {Name: "m-1", Volume: test.other}}
		self := Self{Volume: test.own}
		listing := p.withoutCluster(self, nil, calls)
		assert.Equal(t, test.want, listing, "%+v", test)
		requireMessage(t, joinErrors(p.describeMissing(self, &Survey{Membership: listing}, nil, calls)), test.message)
	}
}

func TestQuery_describesDifferentRestores(t *testing.T) {
	all := newWaitingMembers(t)
	self := Self{Volume: Data, Restore: "back"}
	all[1].Publish(Self{Volume: Data, Restore: "another"})
	all[2].Publish(Self{Volume: Restores, Restore: "back"})
	c := all[0].Query(t.Context(), self)
	assert.Equal(t, Unknown, c.Membership)
	assert.EqualError(t, c.Missing, "m-1 has not requested the same restore; m-2 is about to restore the backup")
	all[1].Publish(self)
	c = all[0].Query(t.Context(), self)
	assert.Equal(t, Unknown, c.Membership, "m-2 will have the data")
	assert.EqualError(t, c.Missing, "m-2 is about to restore the backup")
	c = all[0].Query(t.Context(), Self{Volume: Restores, Restore: "back"})
	assert.Equal(t, RestoreAgreed, c.Membership, "the store decides which member restores")
	assert.NoError(t, c.Missing)
}

func TestQuery_describesAMinority(t *testing.T) {
	tc := newTestCluster(t)
	tc.fakes[0].unreachable.Store(true)
	c := tc.query()
	assert.ErrorContains(t, c.Missing, "of 3 voting members, only m-1 responded, but 2 are needed; m-0 does not respond (")
	tc = newTestCluster(t)
	tc.changeList(0, withoutOwn)
	assert.EqualError(t, tc.query().Missing, "the other members disagree on the member list")
}

func TestQuery_countsVoters(t *testing.T) {
	tc := newTestCluster(t)
	tc.fakes[0].unreachable.Store(true)
	c := tc.peers.Query(t.Context(), selfWithData(0xabc, ownID, 1))
	assert.Equal(t, 3, c.Voters, "a single response reveals the other voters")
	assert.Equal(t, 1, c.Running)
	c = tc.peers.Query(t.Context(), selfWithData(0xdef, ownID, 1))
	assert.Zero(t, c.Voters)
	assert.Zero(t, c.Running, "a member of another cluster does not count")
}

func TestQuery_countsOlderMembers(t *testing.T) {
	all := newWaitingMembers(t)
	all[1].Publish(Self{Volume: Older})
	all[2].Publish(Self{Volume: Unusable})
	c := all[0].Query(t.Context(), Self{Volume: Older})
	assert.Equal(t, 1, c.Older)
	assert.Equal(t, AllLost, c.Membership)
}

func TestAddCounts_noQuorumElsewhere(t *testing.T) {
	const cluster = 0xabc
	nothing, unusable := Status{Volume: Nothing}, Status{Volume: Unusable, Cluster: "abc"}
	data, older := Status{Volume: Data, Cluster: "abc"}, Status{Volume: Older, Cluster: "abc"}
	replaced, unnamed := Status{Volume: Data, Cluster: "def"}, Status{Volume: Data}
	for _, c := range []struct {
		members int
		calls   []Status
		want    bool
	}{
		{3, nil, false},
		{3, []Status{nothing}, true},
		{3, []Status{unusable}, true},
		{3, []Status{replaced}, true},
		{3, []Status{data}, false},
		{3, []Status{older}, false},
		{3, []Status{unnamed}, false},
		{3, []Status{nothing, data}, false},
		{3, []Status{nothing, replaced}, true},
		{5, []Status{nothing}, false},
		{5, []Status{nothing, unusable}, true},
		{2, nil, false},
		{2, []Status{nothing}, true},
	} {
		p := &Peers{others: map[string][]string{}}
		for i := range c.members - 1 {
			p.others[fmt.Sprint("m-", i)] = nil
		}
		var survey Survey
		p.addCounts(&survey, Self{Position: datadir.Position{ClusterID: cluster}}, nil, c.calls)
		assert.Equal(t, c.want, survey.NoQuorumElsewhere, "%+v", c)
	}
}

func TestPublish(t *testing.T) {
	all := newWaitingMembers(t)
	all[0].Publish(Self{Volume: Data, Position: datadir.Position{ClusterID: 0xabc}})
	var call Status
	require.True(t, all[1].readStatus(t.Context(), "m-0", all[1].others["m-0"], &call))
	assert.Equal(t, Data, call.Volume)
	assert.Equal(t, "abc", call.Cluster)
}

// newPeer returns a peer with the given etcd version and cluster version. The peer reports a downgrade in progress for
// the given number of requests, or forever if the number is negative.
func newPeer(version, cluster string, requests int64) http.Handler {
	left := atomic.Int64{}
	left.Store(requests)
	mux := http.NewServeMux()
	mux.HandleFunc("/downgrade/enabled", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "%t", requests < 0 || left.Add(-1) >= 0)
	})
	mux.HandleFunc("/version", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"etcdserver":"%s","etcdcluster":"%s","storage":"3.5.0"}`, version, cluster)
	})
	return mux
}

// newJoining returns the Peers of a member that joins the given peers.
func newJoining(t *testing.T, peers ...http.Handler) *Peers {
	t.Helper()
	config := embed.NewConfig()
	config.Name = "new"
	config.InitialCluster = "new=http://127.0.0.1:1"
	for i, peer := range peers {
		server := httptest.NewServer(peer)
		t.Cleanup(server.Close)
		config.InitialCluster += fmt.Sprintf(",peer-%d=%s", i, server.URL)
	}
	p, err := New(config, Options{})
	require.NoError(t, err)
	t.Cleanup(p.Close)
	return p
}

var unavailable = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })

func TestAwaitVersion_untilADowngradeEnds(t *testing.T) {
	t.Parallel()
	var reasons []string
	report := func(reason string) { reasons = append(reasons, reason) }
	v, err := newJoining(t, unavailable, newPeer("3.6.16", "3.5.0", 2)).AwaitVersion(t.Context(), time.Minute, report)
	require.NoError(t, err)
	require.Equal(t, dataversion.Of3_5, v)
	require.Equal(t, []string{"waiting for a downgrade of the cluster to finish; etcd admits no new members during a downgrade"}, reasons, "the reason is reported once")
}

func TestAwaitVersion_withoutADowngrade(t *testing.T) {
	t.Parallel()
	never := func(string) { t.Error("AwaitVersion waits") }
	p := newJoining(t, newPeer("3.6.16", "3.5.0", 0), newPeer("3.6.16", "3.6.0", 0), newPeer("3.6.16", "not_decided", 0))
	v, err := p.AwaitVersion(t.Context(), time.Minute, never)
	require.NoError(t, err)
	require.Equal(t, dataversion.Of3_6, v, "the highest cluster version of all peers")
	v, err = newJoining(t, unavailable).AwaitVersion(t.Context(), time.Minute, never)
	require.NoError(t, err)
	require.Zero(t, v)
}

func TestAwaitVersion_peersThatAreTooOld(t *testing.T) {
	t.Parallel()
	for server, refused := range map[string]bool{"3.4.34": true, "3.5.27": false, "3.5.27+3.6.16": false, "3.7.1": false, "odd": false} {
		// The cluster version remains 3.0.0, because the peers cannot agree on one until this member has started.
		p := newJoining(t, unavailable, newPeer("3.6.16", "3.6.0", 0), newPeer(server, "3.0.0", 0))
		_, err := p.AwaitVersion(t.Context(), time.Minute, func(string) { t.Error("AwaitVersion waits") })
		assert.Equal(t, refused, exitcode.StatusOf(err, exitcode.Clean) == exitcode.BadConfig, "%s: %v", server, err)
	}
}

func TestAwaitVersion_downgradeThatDoesNotEnd(t *testing.T) {
	t.Parallel()
	p := newJoining(t, newPeer("3.6.16", "3.5.0", -1))
	_, err := p.AwaitVersion(t.Context(), time.Millisecond, func(string) {})
	require.ErrorContains(t, err, "etcdctl downgrade cancel")
	ctx, stop := context.WithCancel(t.Context())
	_, err = p.AwaitVersion(ctx, time.Minute, func(string) { stop() })
	require.ErrorIs(t, err, context.Canceled)
}

func TestRequestOwnURLs(t *testing.T) {
	tc := newTestCluster(t)
	at := httptest.NewServer(nil)
	here, err := url.Parse(at.URL)
	require.NoError(t, err)
	tc.peers.config.ListenPeerUrls, tc.peers.urls = []url.URL{*here}, []string{at.URL}
	require.ErrorContains(t, tc.peers.requestOwnURLs(t.Context(), tc.peers.urls), "cannot listen on the peer URLs", "another process is listening")
	at.Close()
	require.NoError(t, tc.peers.requestOwnURLs(t.Context(), tc.peers.urls))
	require.NoError(t, tc.peers.requestOwnURLs(t.Context(), tc.peers.urls), "this process is already listening")

	other := newTestCluster(t)
	other.peers.config.ListenPeerUrls, other.peers.urls = tc.peers.config.ListenPeerUrls, tc.peers.urls
	require.ErrorContains(t, other.peers.requestOwnURLs(t.Context(), other.peers.urls), "cannot listen")
	other.peers.config.ListenPeerUrls = nil
	require.ErrorContains(t, other.peers.requestOwnURLs(t.Context(), other.peers.urls), "another process is responding at")
	tc.peers.Close()
	require.ErrorContains(t, other.peers.requestOwnURLs(t.Context(), other.peers.urls), "cannot reach itself")
}

func TestQuery_cannotListen(t *testing.T) {
	all := newWaitingMembers(t)
	require.NoError(t, all[0].serve())
	all[1].config.ListenPeerUrls = all[0].config.ListenPeerUrls
	c := all[1].Query(t.Context(), Self{Volume: Nothing})
	assert.ErrorContains(t, c.Missing, "cannot listen on the peer URLs")
	assert.ErrorContains(t, c.Missing, "m-2 does not respond")
}
