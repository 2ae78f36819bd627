package member

import (
	"cmp"
	"slices"
	"strings"

	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.etcd.io/etcd/server/v3/storage"
)

// View is its cluster as a member sees it at one moment, and the size of its own database. IDs are hexadecimal.
type View struct {
	Name      string
	ClusterID string
	Leader    string // empty if the member knows none
	Term      uint64
	DBSize    int64 // bytes of the file
	DBInUse   int64 // bytes of it that defragmentation would keep
	Quota     int64 // bytes; 0 if there is no limit
	Peers     []Peer
}

// Peer is one member of the cluster, the one that looks included.
type Peer struct {
	ID      string
	Name    string // empty until it has told its name
	URLs    []string
	Active  bool // etcd has a connection to it
	Leader  bool
	Learner bool
}

// Called is what people know the peer by.
func (p Peer) Called() string { return cmp.Or(p.Name, strings.Join(p.URLs, ","), p.ID) }

// Server is etcd's own, for what reads its database; nil until etcd has been opened.
func (m *Member) Server() *etcdserver.EtcdServer {
	if !m.running() {
		return nil
	}
	return m.etcd.Server
}

// View looks at the cluster; ok is false until etcd has been opened. It answers from memory, asks nobody and may be called
// from any goroutine.
func (m *Member) View() (v View, ok bool) {
	if !m.running() {
		return View{}, false
	}
	server := m.etcd.Server
	v = View{Name: m.config.Name, ClusterID: server.Cluster().ID().String(), Term: server.Term(), Quota: m.quota()}
	v.DBSize, v.DBInUse = m.upkeep.Sizes(server)
	if server.Leader() != 0 {
		v.Leader = server.Leader().String()
	}
	active := activePeers(server.MemberID())
	for _, member := range server.Cluster().Members() {
		v.Peers = append(v.Peers, Peer{
			ID: member.ID.String(), Name: member.Name, URLs: slices.Clone(member.PeerURLs), Learner: member.IsLearner,
			Active: member.ID == server.MemberID() || active[member.ID], Leader: member.ID == server.Leader(),
		})
	}
	slices.SortFunc(v.Peers, func(a, b Peer) int { return strings.Compare(a.Called(), b.Called()) })
	return v, true
}

// Missing are the members that etcd has no connection to, by name. It answers from memory.
func (m *Member) Missing() (names []string) {
	if !m.running() {
		return nil
	}
	return missing(m.etcd.Server.Cluster().Members(), m.etcd.Server.MemberID())
}

func missing(members []*membership.Member, self types.ID) (names []string) {
	active := activePeers(self)
	for _, member := range members {
		if member.ID != self && !active[member.ID] {
			names = append(names, Peer{ID: member.ID.String(), Name: member.Name, URLs: member.PeerURLs}.Called())
		}
	}
	slices.Sort(names)
	return names
}

// running reports whether embed.StartEtcd has come to a good end, and etcd to none.
func (m *Member) running() bool {
	select {
	case <-m.started:
	default:
		return false
	}
	if m.etcd == nil {
		return false
	}
	select {
	case <-m.etcd.Server.StopNotify():
		return false
	default:
		return true
	}
}

// quota is etcd's in bytes; 0 if there is none.
func (m *Member) quota() int64 {
	switch configured := m.config.QuotaBackendBytes; {
	case configured < 0:
		return 0
	case configured == 0:
		return storage.DefaultQuotaBytes
	default:
		return configured
	}
}
