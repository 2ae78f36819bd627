package member

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	metrics "github.com/prometheus/client_model/go"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	layout "go.etcd.io/etcd/server/v3/storage/datadir"
	"golang.org/x/net/http/httpproxy"

	"etcd-wrapper/member/maintenance"
	"etcd-wrapper/member/state"
)

// The methods in this file may be called from any goroutine.

// Doing describes the current step of the start or the close, such as "opening the data directory", to complete the sentence
// "etcd is …". Doing returns "" if neither is in progress.
func (m *Member) Doing() string {
	doing, _ := m.doing.Load().(string)
	switch doing {
	case opensData:
		return cmp.Or(maintenance.StartProgress(layout.ToSnapDir(m.config.Dir)), doing)
	case awaitsQuorum:
		if names := m.Missing(); len(names) > 0 {
			return doing + "; no connection to " + strings.Join(names, ", ") + ": check that each is running and reachable; etcd-wrapper status shows what it is waiting for"
		}
	}
	return doing
}

// Server returns etcd's server, for reading its database. Server returns nil before etcd has started and after it has
// stopped.
func (m *Member) Server() *etcdserver.EtcdServer {
	if !isClosed(m.started) || m.etcd == nil || isClosed(m.etcd.Server.StopNotify()) {
		return nil
	}
	return m.etcd.Server
}

func isClosed(signal <-chan struct{}) bool {
	select {
	case <-signal:
		return true
	default:
		return false
	}
}

// View returns the state of the cluster, read from memory. ok is false before etcd has started and after it has
// stopped.
func (m *Member) View() (v state.Member, ok bool) {
	server := m.Server()
	if server == nil {
		return state.Member{}, false
	}
	v = state.Member{
		Name: m.config.Name, ClusterID: server.Cluster().ID().String(), Term: server.Term(), Quota: m.quota(), NewCluster: m.creates, Revision: currentRevision(),
	}
	v.DBSize, v.DBInUse = m.Maintainer.Sizes(server)
	volume := m.Maintainer.Volume()
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
	name := func(p state.Peer) string { return cmp.Or(p.Name, strings.Join(p.URLs, ","), p.ID) }
	slices.SortFunc(v.Peers, func(a, b state.Peer) int { return strings.Compare(name(a), name(b)) })
	return v, true
}

// Requests returns the totals of successful client writes (puts, deletes and transactions) and reads.
func (m *Member) Requests() (writes, reads state.Requests) {
	return m.requests.writes.total(), m.requests.reads.total()
}

// DataVersion returns the state of the data version. ok is false until the member is ready, or if no version was
// requested.
func (m *Member) DataVersion() (version state.DataVersion, ok bool) {
	keeper := m.keeper.Load()
	if keeper == nil {
		return state.DataVersion{}, false
	}
	return keeper.State(), true
}

// Unreadable returns why the wanted etcd version cannot read the data, or "" if it can or no version was requested.
func (m *Member) Unreadable() string {
	version, ok := m.DataVersion()
	if !ok || version.Readable {
		return ""
	}
	return fmt.Sprintf("etcd %s cannot read the data: %s", version.Wanted, version.Reason)
}

// Missing describes the members, with their addresses, to which etcd has no connection. Missing does not block.
func (m *Member) Missing() (peers []string) {
	server := m.Server()
	if server == nil {
		return nil
	}
	members := server.Cluster().Members()
	if len(members) == 1 {
		return nil
	}
	active := activePeers(server.MemberID())
	for _, member := range members {
		if member.ID != server.MemberID() && !active[member.ID] {
			peers = append(peers, describeUnreachable(member, m.configured[member.Name]))
		}
	}
	slices.Sort(peers)
	return peers
}

// NotJoined returns the sorted names of the members that are in initial-cluster but, according to etcd's log, not in
// the cluster. NotJoined returns nil before etcd has started and after it has stopped.
func (m *Member) NotJoined() (names []string) {
	server := m.Server()
	if server == nil {
		return nil
	}
	members := server.Cluster().Members()
	for name, urls := range m.configured {
		isMember := func(member *membership.Member) bool {
			return member.Name == name || equalURLs(member.PeerURLs, urls.StringSlice())
		}
		if !slices.ContainsFunc(members, isMember) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// describeUnreachable describes a member to which etcd cannot connect. etcd dials the addresses in its log rather
// than the configured ones, and it honors the proxy set in the environment.
func describeUnreachable(member *membership.Member, configured types.URLs) string {
	urls := strings.Join(member.PeerURLs, ",")
	name := cmp.Or(member.Name, urls, member.ID.String())
	var hints []string
	if member.Name != "" {
		hints = append(hints, urls)
	}
	if len(configured) > 0 && !equalURLs(member.PeerURLs, configured.StringSlice()) {
		hints = append(hints, fmt.Sprintf("according to etcd's log; initial-cluster has %s", configured))
	}
	proxyFor := httpproxy.FromEnvironment().ProxyFunc()
	for _, each := range member.PeerURLs {
		peer, err := url.Parse(each)
		if err != nil {
			continue
		}
		if proxy, err := proxyFor(peer); err == nil && proxy != nil {
			hints = append(hints, fmt.Sprintf("through the proxy %s: add %s to NO_PROXY", proxy.Redacted(), peer.Hostname()))
			break
		}
	}
	if len(hints) == 0 {
		return name
	}
	return fmt.Sprintf("%s (%s)", name, strings.Join(hints, ", "))
}

// ListenerError returns why etcd stopped listening, or nil if it is listening.
func (m *Member) ListenerError() error { return loadError(&m.stopped) }

// LostData returns an error if etcd's files were removed or replaced. LostData does not block. It takes up to 5 s to
// notice a loss.
func (m *Member) LostData() error { return loadError(&m.files.lost) }

func loadError(p *atomic.Pointer[error]) error {
	if err := p.Load(); err != nil {
		return *err
	}
	return nil
}

// The readiness monitor calls the methods below after a successful Open and before Close. They use the server object
// directly, so that problems with authentication, certificates or hostnames cannot make a healthy member appear
// unhealthy.

// LinearizableRead returns nil once a quorum has confirmed a read, or an error if ctx is done or etcd stops first.
func (m *Member) LinearizableRead(ctx context.Context) error {
	return m.etcd.Server.LinearizableReadNotify(ctx)
}

// ID returns the member's ID.
func (m *Member) ID() types.ID { return m.etcd.Server.MemberID() }

// LeaderChanged returns a channel that is closed the next time the leader changes.
func (m *Member) LeaderChanged() <-chan struct{} { return m.etcd.Server.LeaderChangedNotify() }

// HasLeader reports whether this member has a leader.
func (m *Member) HasLeader() bool { return m.etcd.Server.Leader() != 0 }

// IsLearner reports whether the member cannot vote yet.
func (m *Member) IsLearner() bool { return m.etcd.Server.IsLearner() }

// Alarms reports which alarms have been raised by any member of the cluster.
func (m *Member) Alarms() (corrupt, noSpace bool) {
	for _, alarm := range m.etcd.Server.Alarms() {
		corrupt = corrupt || alarm.Alarm == etcdserverpb.AlarmType_CORRUPT
		noSpace = noSpace || alarm.Alarm == etcdserverpb.AlarmType_NOSPACE
	}
	return corrupt, noSpace
}

// etcdGauge returns a function that reads one of etcd's gauges, for values that etcd exposes in no other way, or only
// through calls that block. The only way to get a registered gauge from Prometheus is to register an identical one.
// The function returns nil if etcd no longer has the gauge.
func etcdGauge(subsystem, name, help string, labels ...string) func() []*metrics.Metric {
	find := sync.OnceValue(func() prometheus.Collector {
		equal := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "etcd", Subsystem: subsystem, Name: name, Help: help}, labels)
		if existing, ok := errors.AsType[prometheus.AlreadyRegisteredError](prometheus.Register(equal)); ok {
			return existing.ExistingCollector
		}
		return equal
	})
	return func() (values []*metrics.Metric) {
		collected := make(chan prometheus.Metric)
		go func() { defer close(collected); find().Collect(collected) }()
		for each := range collected {
			var value metrics.Metric
			if each.Write(&value) == nil {
				values = append(values, &value)
			}
		}
		return values
	}
}

var (
	// peerConnections returns a value for each connection to a peer: 1 if it is open, and 0 if it is closed. etcd uses
	// the same connections to decide whether a peer is active.
	peerConnections = etcdGauge("network", "active_peers", "The current number of active peer connections.", "Local", "Remote")
	// snapshotSends returns the number of database snapshots being sent to each peer.
	snapshotSends = etcdGauge("network", "snapshot_send_inflights_total", "Total number of inflight snapshot sends", "To")
	// revisions returns the newest revision in the database. Unlike the database itself, the gauge can be read during
	// a defragmentation.
	revisions = etcdGauge("debugging_mvcc", "current_revision", "The current revision of store.")
)

// currentRevision returns the newest revision in the database, or 0 if etcd no longer has the gauge.
func currentRevision() (revision int64) {
	for _, value := range revisions() {
		revision = int64(value.GetGauge().GetValue())
	}
	return revision
}

// activePeers returns the members to which the local member is connected.
func activePeers(local types.ID) map[types.ID]bool {
	active := map[types.ID]bool{}
	for _, value := range peerConnections() {
		labels := map[string]string{}
		for _, label := range value.GetLabel() {
			labels[label.GetName()] = label.GetValue()
		}
		remote, err := types.IDFromString(labels["Remote"])
		if err == nil && labels["Local"] == local.String() && value.GetGauge().GetValue() > 0 {
			active[remote] = true
		}
	}
	return active
}

// sendsSnapshot reports whether a database snapshot is being sent to a peer.
func sendsSnapshot() bool {
	for _, value := range snapshotSends() {
		if value.GetGauge().GetValue() > 0 {
			return true
		}
	}
	return false
}
