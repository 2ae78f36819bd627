package member

import (
	"context"
	"strings"
	"time"
)

// Close stops etcd and returns once no part of it is running. opened reports whether etcd ever opened the data or
// rejected it; an error means that etcd was not closed cleanly. Close takes as long as etcd does, so the caller
// must bound it.
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

// Drained returns the time that the clients' endless streams took to end, or 0 if there were none. It must be
// called after Close.
func (m *Member) Drained() time.Duration { return time.Duration(m.drain.took.Load()) }

// describeClose describes what a close is waiting for. For a leader, this includes the transfer of the leadership.
func (m *Member) describeClose(what string) string {
	server := m.etcd.Server
	if server.Leader() == server.MemberID() && len(server.Cluster().Members()) > 1 {
		return what + ", and for another member to take its leadership over"
	}
	return what
}

func (m *Member) closeInOrder() error {
	m.doing.Store("cannot be closed before its data is open")
	<-m.started
	defer m.doing.Store("")
	if m.etcd == nil {
		return m.startErr
	}
	impatient := time.AfterFunc(m.options.ClosePatience, m.etcd.Server.HardStop)
	defer impatient.Stop()
	m.doing.Store(m.describeClose("waits for the maintenance of its database to end"))
	if m.stopServing != nil {
		m.stopServing()
	}
	m.serving.Wait()
	first := m.describeClose("waits for its clients' requests to end")
	m.doing.Store(first)
	closed := make(chan struct{})
	defer close(closed)
	m.drain.start()
	go m.watchClose(first, closed)
	if left := m.leave(); left || !isClosed(m.etcd.Server.ReadyNotify()) || !m.HasLeader() {
		// Without a quorum, or without a place in it, etcd's own close would wait for responses that never arrive.
		m.etcd.Server.HardStop()
	}
	m.etcd.Close()
	m.starting.Wait()
	m.files.check(m.options.Log)
	return m.LostData()
}

// leaveReserve is the part of ClosePatience that remains for closing a member that cannot leave.
const leaveReserve = 5 * time.Second

// leave removes a member that is no longer wanted from its cluster. Its own vote is needed as well: in a cluster of
// two, neither member can remove the other alone. A member that could not leave in time stays in the member list.
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
	m.doing.Store("waits to leave its cluster, as fewer members are wanted")
	left := func() bool { return server.Cluster().Member(server.MemberID()) == nil }
	retry(ctx, server, m.options.Log, hurried, "remove this member, which is no longer wanted, from the cluster", func(ctx context.Context) error {
		_, err := server.RemoveMember(ctx, uint64(server.MemberID()))
		if left() {
			return nil // a response may be lost
		}
		return err
	})
	if left() {
		m.options.Log.Info().Msg("this member has left its cluster, as fewer members are wanted")
	} else {
		m.options.Log.Warn().Stringer("member", server.MemberID()).
			Msg("this member could not leave its cluster, though fewer members are wanted: start it again, or remove it with etcdctl member remove")
	}
	return left()
}

// watchClose keeps Doing up to date while etcd closes, starting with waits, and closes the connections of clients
// that delay the close.
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
			report("writes its data to the disk and closes it")
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
