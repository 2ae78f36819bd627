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

// fake is another member, which serves peers and clients at the same address.
type fake struct {
	*httptest.Server

	id      uint64
	cluster string
	members func() []Member
	runs    string
	metrics string
	vars    string
	call    *Status     // status reported while etcd is not running; nil if etcd is running
	away    atomic.Bool // whether to close every connection but keep the port, so that no other test can reuse it
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if f.away.Load() {
		panic(http.ErrAbortHandler)
	}
	if f.call != nil {
		var d statusServer
		d.status.Store(f.call)
		d.ServeHTTP(w, r)
		return
	}
	switch r.URL.Path {
	case "/members":
		w.Header().Set("X-Etcd-Cluster-ID", f.cluster)
		_ = json.NewEncoder(w).Encode(f.members())
	case "/version":
		_ = json.NewEncoder(w).Encode(version.Versions{Server: f.runs})
	case "/metrics":
		_, _ = fmt.Fprint(w, f.metrics)
	case "/debug/vars":
		_, _ = fmt.Fprint(w, f.vars)
	}
}

// town is a cluster of fake members plus the member that queries them.
type town struct {
	*testing.T

	fakes []*fake
	list  []Member // member list that all fakes return
	peers *Peers
	now   time.Time
}

const own = uint64(0xc2)

// newTown returns a cluster in which m-2 queries m-0 and m-1, which list m-2 as started.
func newTown(t *testing.T) *town {
	t.Helper()
	town := &town{T: t, now: time.Now()}
	config := embed.NewConfig()
	config.Name, config.InitialClusterToken = "m-2", "token"
	pairs := []string{"m-2=http://127.0.0.1:1"}
	for i := range 2 {
		f := &fake{id: 0xc0 + uint64(i), cluster: "abc", members: func() []Member { return town.list }, runs: version.Version, metrics: "# nothing\n"}
		f.Server = httptest.NewServer(f)
		t.Cleanup(f.Close)
		town.fakes = append(town.fakes, f)
		town.list = append(town.list, member(f.id, fmt.Sprintf("m-%d", i), f.URL))
		pairs = append(pairs, fmt.Sprintf("m-%d=%s", i, f.URL))
	}
	town.list = append(town.list, member(own, "m-2", "http://127.0.0.1:1"))
	config.InitialCluster = strings.Join(pairs, ",")
	config.AdvertisePeerUrls = []url.URL{{Scheme: "http", Host: "127.0.0.1:1"}}
	var err error
	town.peers, err = New(config, Options{})
	require.NoError(t, err)
	t.Cleanup(town.peers.Close)
	town.peers.config.ListenPeerUrls = nil // never called
	town.peers.now = func() time.Time { return town.now }
	town.peers.checkOwnURLs = func(context.Context, []string) error { return nil }
	return town
}

// add adds a member to the cluster and to initial-cluster.
func (w *town) add(id uint64, name string) *fake {
	f := &fake{id: id, cluster: "abc", members: func() []Member { return w.list }, runs: version.Version, metrics: "# nothing\n"}
	f.Server = httptest.NewServer(f)
	w.Cleanup(f.Close)
	w.list = append(w.list, member(id, name, f.URL))
	w.peers.others[name], w.peers.listed = []string{f.URL}, append(w.peers.listed, f.URL)
	return f
}

func member(id uint64, name, at string) (m Member) {
	m.Name, m.PeerURLs, m.ClientURLs = name, []string{at}, []string{at}
	_ = json.Unmarshal(fmt.Appendf(nil, `{"id":%d}`, id), &m)
	return m
}

func (w *town) ask() Survey { return w.peers.Query(w.Context(), Self{}) }

// alter makes a member return a changed member list.
func (w *town) alter(which int, change func(list []Member) []Member) {
	w.fakes[which].members = func() []Member { return change(append([]Member(nil), w.list...)) }
}

func without(list []Member) []Member { return list[:2] }

func unstarted(id uint64) func([]Member) []Member {
	return func(list []Member) []Member {
		list[2] = member(id, "", "http://127.0.0.1:1")
		list[2].ClientURLs = nil
		return list
	}
}

func connectedTo(from, to uint64, count int) string {
	return fmt.Sprintf("etcd_network_active_peers{Local=\"%x\",Remote=\"%x\"} %d\n", from, to, count)
}

// ofTwo returns a cluster of two members, in which m-2 queries m-1.
func ofTwo(t *testing.T) *town {
	t.Helper()
	w := newTown(t)
	w.list = w.list[1:]
	w.peers.others = map[string][]string{"m-1": w.peers.others["m-1"]}
	return w
}

// volume describes a member whose log ends at entry 100.
func volume(cluster, member uint64, voters int) Self {
	return Self{Position: datadir.Position{ClusterID: cluster, MemberID: member, Voters: voters, Index: 100}, Volume: Data}
}

// liar returns the URL of a server that sends the given raw response.
func liar(t *testing.T, says string) string {
	t.Helper()
	lies := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		connection, _, _ := w.(http.Hijacker).Hijack()
		_, _ = connection.Write([]byte("HTTP/1.1 " + says))
		_ = connection.Close()
	}))
	t.Cleanup(lies.Close)
	return lies.URL
}

// requireSays requires an error that contains words, or nil if words is empty.
func requireSays(t *testing.T, err error, words string) {
	t.Helper()
	if words == "" {
		require.NoError(t, err)
		return
	}
	require.ErrorContains(t, err, words)
}

func confirmed(member, entry uint64) string {
	return fmt.Sprintf(`{"raft.status": {"id":"c1","progress":{"%x":{"match":%d,"next":7,"state":"StateReplicate"}}}}`, member, entry)
}
