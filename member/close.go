package member

import (
	"context"
	"strings"
	"time"
)

// Close stops etcd and returns once etcd has fully stopped. opened reports whether etcd opened or rejected the data.
// An error means that etcd was not closed cleanly. Close has no timeout of its own, so the caller must set one.
func (m *Member) Close() (opened bool, err error) {
	if !m.opened {
		return false, nil
	}
	closed := make(chan error, 1)
	go func() { closed <- m.closeInOrder() }()
	select {
	case err := <-closed:
		if m.inert {
			return false, nil // Open has already returned the reason
		}
		return true, err
	case <-m.crashed:
		return true, errCrashed
	}
}

// Drained returns how long it took to end the open client streams, or 0 if there were none. Drained must be called
// after Close.
func (m *Member) Drained() time.Duration { return time.Duration(m.drain.took.Load()) }

// describeClose describes what the close is waiting for. On a leader, the description includes the leadership
// transfer.
func (m *Member) describeClose(what string) string {
	server := m.etcd.Server
	if server.Leader() == server.MemberID() && len(server.Cluster().Members()) > 1 {
		return what + " and for another member to become the leader"
	}
	return what
}

func (m *Member) closeInOrder() error {
	m.doing.Store("opening the data, which cannot be interrupted")
	<-m.started
	defer m.doing.Store("")
	if m.etcd == nil {
		return m.startErr
	}
	impatient := time.AfterFunc(m.options.ClosePatience, m.etcd.Server.HardStop)
	defer impatient.Stop()
	m.doing.Store(m.describeClose("waiting for database maintenance to finish"))
	if m.stopServing != nil {
		m.stopServing()
	}
	m.serving.Wait()
	first := m.describeClose("waiting for client requests to finish")
	m.doing.Store(first)
	closed := make(chan struct{})
	defer close(closed)
	m.drain.start()
	go m.watchClose(first, closed)
	if left := m.leave(); left || !isClosed(m.etcd.Server.ReadyNotify()) || !m.HasLeader() {
		// Without a quorum or after leaving the cluster, a normal close would wait for responses that never arrive.
		m.etcd.Server.HardStop()
	}
	m.etcd.Close()
	m.starting.Wait()
	m.files.check(m.options.Log)
	return m.LostData()
}

// leaveReserve is the part of ClosePatience that is reserved for closing a member that cannot leave.
const leaveReserve = 5 * time.Second

// leave removes this member from the cluster if it was scaled down. The removal also needs the vote of this member:
// in a cluster of two, neither member can remove the other on its own. If the member cannot leave in time, it stays
// in the member list.
func (m *Member) leave() bool {
	server := m.etcd.Server
	if m.options.Unwanted == nil || !isClosed(server.ReadyNotify()) || len(server.Cluster().Members()) == 1 {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), m.options.ClosePatience-leaveReserve)
	defer cancel()
	if !m.options.Unwanted(ctx) {
		return false
	}
	m.doing.Store("leaving the cluster because it was scaled down")
	left := func() bool { return server.Cluster().Member(server.MemberID()) == nil }
	retry(ctx, server, m.options.Log, hurried, "remove this member from the scaled-down cluster", func(ctx context.Context) error {
		_, err := server.RemoveMember(ctx, uint64(server.MemberID()))
		if left() {
			return nil // the response may have been lost
		}
		return err
	})
	if left() {
		m.options.Log.Info().Msg("left the cluster because it was scaled down")
	} else {
		m.options.Log.Warn().Stringer("member", server.MemberID()).
			Msg("cannot leave the cluster after it was scaled down: restart this member, or remove it with etcdctl member remove")
	}
	return left()
}

// watchClose keeps Doing up to date while etcd is closing, and closes the connections of clients that delay the
// close. waits is the initial value of Doing.
func (m *Member) watchClose(waits string, closed <-chan struct{}) {
	doing, stopping := waits, m.etcd.Server.StoppingNotify()
	report := func(next string) {
		m.doing.CompareAndSwap(doing, next)
		doing = next
	}
	deadline := time.Now().Add(m.etcd.Server.Cfg.ReqTimeout())
	poll := time.NewTicker(drainPoll)
	defer poll.Stop()
	for {
		select {
		case <-closed:
			return
		case <-stopping:
			stopping = nil
			report("flushing the data to disk")
		case now := <-poll.C:
			if stalled := m.drain.unreadResponses(); len(stalled) > 0 {
				report(waits + "; " + strings.Join(stalled, "; "))
			}
			if m.drain.isExpired() || now.After(deadline) {
				m.drain.closeConnections(m.options.Log)
				<-closed
				return
			}
		}
	}
}
