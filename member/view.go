package member

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"etcd-wrapper/member/state"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.etcd.io/etcd/server/v3/storage"
	"golang.org/x/net/http/httpproxy"
)

// called returns a peer's name, or its URLs or ID while it has none.
func called(p state.Peer) string { return cmp.Or(p.Name, strings.Join(p.URLs, ","), p.ID) }

// Server returns etcd's server, for readers of its database; nil until etcd is open.
func (m *Member) Server() *etcdserver.EtcdServer {
	if !m.running() {
		return nil
	}
	return m.etcd.Server
}

// View returns the state of the cluster from memory; ok is false until etcd is open. It may be called from any goroutine.
func (m *Member) View() (v state.Member, ok bool) {
	if !m.running() {
		return state.Member{}, false
	}
	server := m.etcd.Server
	v = state.Member{Name: m.config.Name, ClusterID: server.Cluster().ID().String(), Term: server.Term(), Quota: m.quota(), NewCluster: m.founds, Revision: newest()}
	v.DBSize, v.DBInUse = m.maintainer.Sizes(server)
	volume := m.maintainer.Volume()
	v.VolumeFree, v.VolumeSize = volume.Free, volume.Size
	if server.Leader() != 0 {
		v.Leader = server.Leader().String()
	}
	active := activePeers(server.MemberID())
	for _, member := range server.Cluster().Members() {
		v.Peers = append(v.Peers, state.Peer{
			ID: member.ID.String(), Name: member.Name, URLs: slices.Clone(member.PeerURLs), Learner: member.IsLearner,
			Active: member.ID == server.MemberID() || active[member.ID], Leader: member.ID == server.Leader(),
		})
	}
	slices.SortFunc(v.Peers, func(a, b state.Peer) int { return strings.Compare(called(a), called(b)) })
	return v, true
}

// Missing describes the members that etcd has no connection to, with the addresses that it tries. It answers from memory.
func (m *Member) Missing() (peers []string) {
	if !m.running() {
		return nil
	}
	members := m.etcd.Server.Cluster().Members()
	if len(members) == 1 {
		return nil
	}
	return missing(members, m.etcd.Server.MemberID(), m.configured)
}

// NotJoined returns the members in initial-cluster that the cluster does not have by etcd's log, sorted by name; none
// until etcd is open. It may be called from any goroutine.
func (m *Member) NotJoined() (names []string) {
	if !m.running() {
		return nil
	}
	members := m.etcd.Server.Cluster().Members()
	for name, urls := range m.configured {
		isMember := func(member *membership.Member) bool {
			return member.Name == name || sameURLs(member.PeerURLs, urls.StringSlice())
		}
		if !slices.ContainsFunc(members, isMember) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func missing(members []*membership.Member, self types.ID, configured types.URLsMap) (peers []string) {
	active := activePeers(self)
	for _, member := range members {
		if member.ID != self && !active[member.ID] {
			peers = append(peers, unreachable(member, configured[member.Name]))
		}
	}
	slices.Sort(peers)
	return peers
}

// unreachable describes a member that etcd cannot connect to: etcd goes by the addresses in its log, whatever the configuration names,
// and through the proxy that its environment names.
func unreachable(member *membership.Member, configured types.URLs) string {
	peer := state.Peer{ID: member.ID.String(), Name: member.Name, URLs: member.PeerURLs}
	var hints []string
	if peer.Name != "" {
		hints = append(hints, strings.Join(peer.URLs, ","))
	}
	if len(configured) > 0 && !sameURLs(peer.URLs, configured.StringSlice()) {
		hints = append(hints, fmt.Sprintf("by etcd's log; initial-cluster has %s", configured))
	}
	proxyOf := httpproxy.FromEnvironment().ProxyFunc()
	for _, each := range peer.URLs {
		at, err := url.Parse(each)
		if err != nil {
			continue
		}
		if proxy, err := proxyOf(at); err == nil && proxy != nil {
			hints = append(hints, fmt.Sprintf("through the proxy %s: add %s to NO_PROXY", proxy.Redacted(), at.Hostname()))
			break
		}
	}
	if len(hints) == 0 {
		return called(peer)
	}
	return fmt.Sprintf("%s (%s)", called(peer), strings.Join(hints, ", "))
}

// running reports whether embed.StartEtcd has succeeded and etcd has not stopped.
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

// quota returns the quota of the database in bytes; 0 if there is none.
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

// The methods below are for the readiness monitor, between a successful Open and Close. They use the server object itself, so that
// authentication, certificates and host names cannot make a healthy member look unhealthy.

// LinearizableRead returns nil once a quorum has confirmed a read, or an error when ctx ends or etcd stops.
func (m *Member) LinearizableRead(ctx context.Context) error {
	return m.etcd.Server.LinearizableReadNotify(ctx)
}

// ID returns the member's ID.
func (m *Member) ID() types.ID { return m.etcd.Server.MemberID() }

// LeaderChanged returns a channel that is closed when the cluster gets another leader.
func (m *Member) LeaderChanged() <-chan struct{} { return m.etcd.Server.LeaderChangedNotify() }

// HasLeader reports whether the member knows a leader.
func (m *Member) HasLeader() bool { return m.etcd.Server.Leader() != 0 }

// IsLearner reports whether the member has no vote yet.
func (m *Member) IsLearner() bool { return m.etcd.Server.IsLearner() }

// Alarms reports which of etcd's alarms are raised, by any member of the cluster.
func (m *Member) Alarms() (corrupt, noSpace bool) {
	for _, alarm := range m.etcd.Server.Alarms() {
		corrupt = corrupt || alarm.Alarm == etcdserverpb.AlarmType_CORRUPT
		noSpace = noSpace || alarm.Alarm == etcdserverpb.AlarmType_NOSPACE
	}
	return corrupt, noSpace
}

// ListenerError returns why etcd no longer listens, or nil while it does.
func (m *Member) ListenerError() error {
	if lost := m.lost.Load(); lost != nil {
		return *lost
	}
	return nil
}
