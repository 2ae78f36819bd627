package member

import "time"

// Close ends etcd and returns when nothing of it runs any more. opened says whether it ever touched the data, or they
// were found unfit; an error means that it was not closed in order. It takes as long as etcd does: the caller bounds it.
func (m *Member) Close() (opened bool, err error) {
	if !m.opened {
		return false, nil
	}
	closed := make(chan error, 1)
	go func() { closed <- m.closeInOrder() }()
	select {
	case err := <-closed:
		if m.inert {
			return false, nil // Open has said why
		}
		return true, err
	case <-m.crashed:
		return true, errCrashed
	}
}

// Drained returns how long the clients' endless streams took to end; 0 if there were none. It is for after Close.
func (m *Member) Drained() time.Duration { return time.Duration(m.drain.took.Load()) }

// farewell is what a close waits for, with what a leader of others waits for besides.
func (m *Member) farewell(what string) string {
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
	m.doing.Store(m.farewell("waits for what looks after its database to end"))
	m.keeping.end()
	first := m.farewell("waits for its clients' requests to end")
	m.doing.Store(first)
	closed := make(chan struct{})
	defer close(closed)
	go m.tellOfTheDisk(first, closed)
	m.drain.begin()
	if !m.ready() || !m.HasLeader() {
		// Without quorum etcd's own close would wait for answers that cannot come.
		m.etcd.Server.HardStop()
	}
	m.etcd.Close()
	m.catchingUp.Wait()
	return nil
}

// tellOfTheDisk says when all that a close still waits for is the disk.
func (m *Member) tellOfTheDisk(first string, closed <-chan struct{}) {
	select {
	case <-m.etcd.Server.StoppingNotify():
		m.doing.CompareAndSwap(first, "writes its data to the disk and closes it")
	case <-closed:
	}
}

func (m *Member) ready() bool {
	select {
	case <-m.etcd.Server.ReadyNotify():
		return true
	default:
		return false
	}
}
