package peers

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/version"
	"go.etcd.io/etcd/server/v3/embed"

	"etcd-wrapper/bootstrap/datadir"
)

// A fakeMember simulates another member of the cluster. It serves peers and clients at the same URL.
type fakeMember struct {
	*httptest.Server

	id          uint64
	cluster     string          // etcd cluster ID in the header of its responses
	members     func() []Member // returns its member list
	version     string          // etcd version that it reports
	metrics     string          // response to requests for /metrics
	vars        string          // response to requests for /debug/vars
	status      *Status         // status reported while etcd is not running; nil if etcd is running
	unreachable atomic.Bool     // whether to close every connection but keep the port, so that no other test can reuse it
}

func (f *fakeMember) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if f.unreachable.Load() {
		panic(http.ErrAbortHandler)
	}
	if f.status != nil {
		var d statusServer
		d.status.Store(f.status)
		d.ServeHTTP(w, r)
		return
	}
	switch r.URL.Path {
	case "/members":
		w.Header().Set("X-Etcd-Cluster-ID", f.cluster)
		_ = json.NewEncoder(w).Encode(f.members())
	case "/version":
		_ = json.NewEncoder(w).Encode(version.Versions{Server: f.version})
	case "/metrics":
		_, _ = fmt.Fprint(w, f.metrics)
	case "/debug/vars":
		_, _ = fmt.Fprint(w, f.vars)
	}
}

// A testCluster consists of fake members and the member m-2, which queries them.
type testCluster struct {
	*testing.T

	fakes []*fakeMember
	list  []Member // member list that all fake members return by default
	peers *Peers   // used by m-2 to query the fake members
	now   time.Time
}

// ownID is the ID of m-2 in the member lists.
const ownID = uint64(0xc2)

// newTestCluster returns a cluster in which m-2 queries m-0 and m-1, which list m-2 as started.
func newTestCluster(t *testing.T) *testCluster {
	t.Helper()
	tc := &testCluster{T: t, now: time.Now()}
	config := embed.NewConfig()
	config.Name, config.InitialClusterToken = "m-2", "token"
	pairs := []string{"m-2=http://127.0.0.1:1"}
	for i := range 2 {
		f := &fakeMember{id: 0xc0 + uint64(i), cluster: "abc", members: func() []Member { return tc.list }, version: version.Version, metrics: "# nothing\n"}
		f.Server = httptest.NewServer(f)
		t.Cleanup(f.Close)
		tc.fakes = append(tc.fakes, f)
		tc.list = append(tc.list, member(f.id, fmt.Sprintf("m-%d", i), f.URL))
		pairs = append(pairs, fmt.Sprintf("m-%d=%s", i, f.URL))
	}
	tc.list = append(tc.list, member(ownID, "m-2", "http://127.0.0.1:1"))
	config.InitialCluster = strings.Join(pairs, ",")
	config.AdvertisePeerUrls = []url.URL{{Scheme: "http", Host: "127.0.0.1:1"}}
	var err error
	tc.peers, err = New(config, Options{})
	require.NoError(t, err)
	t.Cleanup(tc.peers.Close)
	tc.peers.config.ListenPeerUrls = nil // m-2 need not listen, because the fake members never query it
	tc.peers.now = func() time.Time { return tc.now }
	tc.peers.checkOwnURLs = func(context.Context, []string) error { return nil }
	return tc
}

// add adds a fake member to the cluster and to initial-cluster.
func (tc *testCluster) add(id uint64, name string) *fakeMember {
	f := &fakeMember{id: id, cluster: "abc", members: func() []Member { return tc.list }, version: version.Version, metrics: "# nothing\n"}
	f.Server = httptest.NewServer(f)
	tc.Cleanup(f.Close)
	tc.list = append(tc.list, member(id, name, f.URL))
	tc.peers.others[name], tc.peers.listed = []string{f.URL}, append(tc.peers.listed, f.URL)
	return f
}

func member(id uint64, name, at string) (m Member) {
	m.Name, m.PeerURLs, m.ClientURLs = name, []string{at}, []string{at}
	_ = json.Unmarshal(fmt.Appendf(nil, `{"id":%d}`, id), &m)
	return m
}

func (tc *testCluster) query() Survey { return tc.peers.Query(tc.Context(), Self{}) }

// changeList makes a member return a changed member list.
func (tc *testCluster) changeList(which int, change func(list []Member) []Member) {
	tc.fakes[which].members = func() []Member { return change(append([]Member(nil), tc.list...)) }
}

// withoutOwn removes m-2 from a member list.
func withoutOwn(list []Member) []Member { return list[:2] }

// ownUnstarted returns a function that changes a member list so that m-2 has the given ID and has never started.
func ownUnstarted(id uint64) func([]Member) []Member {
	return func(list []Member) []Member {
		list[2] = member(id, "", "http://127.0.0.1:1")
		list[2].ClientURLs = nil
		return list
	}
}

// activePeers returns etcd's metric for the number of connections between two members.
func activePeers(from, to uint64, count int) string {
	return fmt.Sprintf("etcd_network_active_peers{Local=\"%x\",Remote=\"%x\"} %d\n", from, to, count)
}

// newClusterOfTwo returns a cluster of two members, in which m-2 queries m-1.
func newClusterOfTwo(t *testing.T) *testCluster {
	t.Helper()
	tc := newTestCluster(t)
	tc.list = tc.list[1:]
	tc.peers.others = map[string][]string{"m-1": tc.peers.others["m-1"]}
	return tc
}

// selfWithData describes a member with data of the given cluster, member and number of voters, and with a log that
// ends at entry 100.
func selfWithData(cluster, member uint64, voters int) Self {
	return Self{Position: datadir.Position{ClusterID: cluster, MemberID: member, Voters: voters, Index: 100}, Volume: Data}
}

// newRawServer returns the URL of a server that sends the given raw response.
func newRawServer(t *testing.T, response string) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		connection, _, _ := w.(http.Hijacker).Hijack()
		_, _ = connection.Write([]byte("HTTP/1.1 " + response))
		_ = connection.Close()
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// requireMessage requires an error that contains words, or nil if words is empty.
func requireMessage(t *testing.T, err error, words string) {
	t.Helper()
	if words == "" {
		require.NoError(t, err)
		return
	}
	require.ErrorContains(t, err, words)
}

// raftStatus returns the content of /debug/vars of a leader to which a member has acknowledged the log up to entry.
func raftStatus(member, entry uint64) string {
	return fmt.Sprintf(`{"raft.status": {"id":"c1","progress":{"%x":{"match":%d,"next":7,"state":"StateReplicate"}}}}`, member, entry)
}
