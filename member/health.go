package member

import (
	"context"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/types"
)

// The methods below are for the readiness monitor, between a successful Open and Close. They look at the server object
// itself, so that neither authentication nor certificates nor host names can make a healthy member look ill.

// LinearizableRead returns nil once a quorum has confirmed a read, or an error when ctx ends or etcd stops.
func (m *Member) LinearizableRead(ctx context.Context) error {
	return m.etcd.Server.LinearizableReadNotify(ctx)
}

// ID is the member's number in its cluster.
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
