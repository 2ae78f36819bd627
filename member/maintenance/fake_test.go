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

// fake is a cluster whose facts and defragmentations are controlled by the test.
type fake struct {
	mu       sync.Mutex
	now      facts
	takes    time.Duration
	fails    error
	nobody   bool // no other member is up to date enough to become the leader
	began    []time.Time
	lifted   int
	handed   []string
	stranger bool          // the client lacks permission
	lagging  time.Duration // how long the member takes to catch up
	readable *Gate
}

func (c *fake) facts() facts {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.now
	f.readers = c.readable.Inside()
	return f
}

func (c *fake) change(how func(*facts)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	how(&c.now)
}

func (c *fake) Defragment() error {
	c.change(func(*facts) { c.began = append(c.began, time.Now()) })
	time.Sleep(c.takes)
	c.change(func(f *facts) {
		if c.fails == nil {
			f.size = f.inUse
		}
	})
	return c.fails
}

func (c *fake) isAdmin(context.Context) bool { return !c.stranger }

func (c *fake) copySize() int64 { return c.facts().inUse / 4 }

// gaveTo returns the names of the members to which leadership was transferred.
func (c *fake) gaveTo() (names []string) {
	c.change(func(*facts) { names = slices.Clone(c.handed) })
	return names
}

// liftedTimes returns the number of times an alarm was disarmed.
func (c *fake) liftedTimes() (times int) {
	c.change(func(*facts) { times = c.lifted })
	return times
}

func (c *fake) successor() (peer, bool) { return peer{id: 3, name: "etcd-2"}, !c.nobody }

func (c *fake) handOver(_ context.Context, to peer) error {
	c.change(func(f *facts) {
		f.leader = to.id
		c.handed = append(c.handed, to.name)
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
		c.lifted++
	})
	return nil
}

// table is a fake schedule in which the test plays the other members.
type table struct {
	mu      sync.Mutex
	turn    string
	waiting []peer
	mine    bool
	ended   int
	ending  time.Duration // how long release takes

	announced int
	deaf      error // error returned by proposeTransfer
}

func (s *table) request(context.Context) error { return nil }

func (s *table) candidates([]peer) []peer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waiting
}

func (s *table) acquire(context.Context, []peer) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.turn != "" {
		return errors.New("member " + s.turn + " " + errTaken.Error())
	}
	s.mine = true
	return nil
}

func (s *table) proposeTransfer(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.announced++
	return s.deaf
}

// now reports whether it is this member's turn, and how many leadership transfers it has announced.
func (s *table) now() (mine bool, announced int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mine, s.announced
}

func (s *table) isMine() bool {
	mine, _ := s.now()
	return mine
}

func (s *table) renew(context.Context) func() { return func() {} }

func (s *table) release(context.Context) {
	time.Sleep(s.ending)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mine = false
	s.ended++
}

func (s *table) seats(turn string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turn, s.waiting = turn, nil
}

// stand is a Maintainer with a fake cluster.
type stand struct {
	*Maintainer
	cluster *fake
	table   *table
	gate    *Gate
	log     *logtest.Lines
	busy    bool // a defragmentation is running
}

// runStand runs a Maintainer for as long as do runs. do can sleep to advance the fake clock.
func runStand(t *testing.T, change func(*stand), do func(*stand)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		g := &Gate{}
		s := &stand{cluster: &fake{now: healthy(), takes: 4 * time.Second, readable: g}, table: &table{}, gate: g, log: &logtest.Lines{}}
		change(s)
		s.Maintainer = New(Options{Threshold: usual, MaxPause: 15 * time.Second, Log: zerolog.New(s.log), Gate: g, Name: "etcd-0"})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.run(ctx, &service{cluster: s.cluster, newSchedule: func() schedule { return s.table }})
		}()
		synctest.Wait()
		do(s)
		cancel()
		<-done
		assert.False(t, s.table.isMine(), "no turn is left behind")
		_, err := g.Close("the test")
		assert.NoError(t, err, "nor is the gate closed")
	})
}
