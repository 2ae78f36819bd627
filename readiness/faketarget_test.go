package readiness

import (
	"context"
	"sync"
	"time"
)

// fakeTarget is a Target whose every answer a test can choose.
type fakeTarget struct {
	mu       sync.Mutex
	noLeader bool
	learner  bool
	corrupt  bool
	noSpace  bool
	listener error
	tooNew   string
	missing  []string
	away     string
	ended    string
	soon     string
	read     func(context.Context) error
	changed  chan struct{}

	reads, inFlight, mostInFlight int
}

func newTarget() *fakeTarget {
	return &fakeTarget{changed: make(chan struct{}), read: func(context.Context) error { return nil }}
}

// set changes the target under its lock.
func (m *fakeTarget) set(change func(*fakeTarget)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(m)
}

func (m *fakeTarget) elect() {
	m.set(func(m *fakeTarget) {
		m.noLeader = false
		close(m.changed)
		m.changed = make(chan struct{})
	})
}

func (m *fakeTarget) LinearizableRead(ctx context.Context) error {
	var read func(context.Context) error
	m.set(func(m *fakeTarget) {
		read = m.read
		m.reads++
		m.inFlight++
		m.mostInFlight = max(m.mostInFlight, m.inFlight)
	})
	defer m.set(func(m *fakeTarget) { m.inFlight-- })
	return read(ctx)
}

func (m *fakeTarget) LeaderChanged() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.changed
}

func (m *fakeTarget) HasLeader() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.noLeader
}

func (m *fakeTarget) IsLearner() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.learner
}

func (m *fakeTarget) Alarms() (corrupt, noSpace bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.corrupt, m.noSpace
}

func (m *fakeTarget) ListenerError() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.listener
}

func (m *fakeTarget) Unreadable() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.tooNew
}

func (m *fakeTarget) Away() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.away
}

func (m *fakeTarget) Missing() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.missing
}

func (m *fakeTarget) Certificates(time.Time) (ended, soon string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ended, m.soon
}
