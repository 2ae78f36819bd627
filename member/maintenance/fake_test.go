package maintenance

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"go.etcd.io/etcd/client/pkg/v3/types"

	"etcd-wrapper/internal/logtest"
)

// fake implements cluster without etcd. The test sets the facts and the results of the calls.
type fake struct {
	mu          sync.Mutex
	now         facts
	duration    time.Duration // duration of Defragment
	err         error         // result of Defragment
	noSuccessor bool          // successor finds no other member that is up to date
	notAdmin    bool          // isAdmin returns false
	lagging     time.Duration // duration of waitApplied
	gate        *Gate         // facts includes the number of its readers

	disarmed   int      // number of calls of disarm
	newLeaders []string // names of the members to which leadership was transferred
}

func (c *fake) facts() facts {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.now
	f.readers = c.gate.Inside()
	return f
}

func (c *fake) change(how func(*facts)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	how(&c.now)
}

func (c *fake) Defragment() error {
	time.Sleep(c.duration)
	c.change(func(f *facts) {
		if c.err == nil {
			f.size = f.inUse
		}
	})
	return c.err
}

func (c *fake) isAdmin(context.Context) bool { return !c.notAdmin }

func (c *fake) copySize() int64 { return c.facts().inUse / 4 }

// transferredTo returns the names of the members to which leadership was transferred.
func (c *fake) transferredTo() (names []string) {
	c.change(func(*facts) { names = slices.Clone(c.newLeaders) })
	return names
}

// disarmCount returns the number of times an alarm was disarmed.
func (c *fake) disarmCount() (times int) {
	c.change(func(*facts) { times = c.disarmed })
	return times
}

func (c *fake) successor() (peer, bool) { return peer{id: 3, name: "etcd-2"}, !c.noSuccessor }

func (c *fake) handOver(_ context.Context, to peer) error {
	c.change(func(f *facts) {
		f.leader = to.id
		c.newLeaders = append(c.newLeaders, to.name)
	})
	return nil
}

func (c *fake) waitApplied(context.Context) error {
	time.Sleep(c.lagging)
	return nil
}

func (c *fake) disarm(_ context.Context, of types.ID) error {
	c.change(func(f *facts) {
		f.full = slices.DeleteFunc(slices.Clone(f.full), func(id types.ID) bool { return id == of })
		c.disarmed++
	})
	return nil
}

// fakeSchedule is a schedule in which the test plays the other members.
type fakeSchedule struct {
	mu          sync.Mutex
	turn        string        // name of the other member whose turn it is; empty if there is none
	waiting     []peer        // result of candidates
	mine        bool          // whether it is this member's turn
	released    int           // number of calls of release
	releaseTime time.Duration // duration of release

	announced   int   // number of calls of proposeTransfer
	transferErr error // result of proposeTransfer
}

func (s *fakeSchedule) request(context.Context) error { return nil }

func (s *fakeSchedule) candidates([]peer) []peer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waiting
}

func (s *fakeSchedule) acquire(context.Context, []peer) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.turn != "" {
		return errors.New("member " + s.turn + " " + errTaken.Error())
	}
	s.mine = true
	return nil
}

func (s *fakeSchedule) proposeTransfer(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.announced++
	return s.transferErr
}

// now reports whether it is this member's turn, and returns the number of leadership transfers that it has announced.
func (s *fakeSchedule) now() (mine bool, announced int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mine, s.announced
}

func (s *fakeSchedule) hasTurn() bool {
	mine, _ := s.now()
	return mine
}

func (s *fakeSchedule) renew(context.Context) func() { return func() {} }

func (s *fakeSchedule) release(context.Context) {
	time.Sleep(s.releaseTime)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mine = false
	s.released++
}

// setTurn makes it the turn of the named member, or of no other member if turn is empty.
func (s *fakeSchedule) setTurn(turn string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turn, s.waiting = turn, nil
}

// fixture is a Maintainer with a fake cluster and a fake schedule.
type fixture struct {
	*Maintainer
	cluster  *fake
	schedule *fakeSchedule
	gate     *Gate
	log      *logtest.Lines
	busy     bool // for leaveFixture: whether a defragmentation is running
}

// runFixture runs a Maintainer until do returns. change is called before the Maintainer is created. do can sleep to
// advance the fake clock.
func runFixture(t *testing.T, change func(*fixture), do func(*fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		g := &Gate{}
		s := &fixture{cluster: &fake{now: healthy(), duration: 4 * time.Second, gate: g}, schedule: &fakeSchedule{}, gate: g, log: &logtest.Lines{}}
		change(s)
		s.Maintainer = New(Options{Threshold: defaultThreshold, MaxPause: 15 * time.Second, Log: zerolog.New(s.log), Gate: g, Name: "etcd-0"})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.run(ctx, &service{cluster: s.cluster, newSchedule: func() schedule { return s.schedule }})
		}()
		synctest.Wait()
		do(s)
		cancel()
		<-done
		assert.False(t, s.schedule.hasTurn(), "the member has released its turn")
		_, err := g.Close("the test")
		assert.NoError(t, err, "the gate is open")
	})
}
