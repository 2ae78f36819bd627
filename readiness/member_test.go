package readiness

import (
	"context"
	"sync"
)

// member is a Target whose every answer a test can choose.
type member struct {
	mu       sync.Mutex
	noLeader bool
	learner  bool
	corrupt  bool
	noSpace  bool
	listener error
	read     func(context.Context) error
	changed  chan struct{}

	reads, inFlight, mostInFlight int
}

func newMember() *member {
	return &member{changed: make(chan struct{}), read: func(context.Context) error { return nil }}
}

// set changes the member under its lock.
func (m *member) set(change func(*member)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(m)
}

func (m *member) elect() {
	m.set(func(m *member) {
		m.noLeader = false
		close(m.changed)
		m.changed = make(chan struct{})
	})
}

func (m *member) LinearizableRead(ctx context.Context) error {
	var read func(context.Context) error
	m.set(func(m *member) {
		read = m.read
		m.reads++
		m.inFlight++
		m.mostInFlight = max(m.mostInFlight, m.inFlight)
	})
	defer m.set(func(m *member) { m.inFlight-- })
	return read(ctx)
}

func (m *member) LeaderChanged() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.changed
}

func (m *member) HasLeader() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.noLeader
}

func (m *member) IsLearner() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.learner
}

func (m *member) Alarms() (corrupt, noSpace bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.corrupt, m.noSpace
}

func (m *member) ListenerError() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.listener
}
