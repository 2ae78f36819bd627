package writer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
)

// begun is a stand whose chain has begun.
func begun(t *testing.T) *stand {
	t.Helper()
	s := newStand(t).run()
	s.awaitStored(s.put("first", "value"))
	return s
}

func TestWhileTheStoreIsAwayEverythingWaitsAndCompactionsLeaveNoGap(t *testing.T) {
	for name, fault := range map[string]memory.Fault{
		"unreachable":   {Err: memory.ErrUnreachable},
		"throttled":     {Err: memory.ErrThrottled},
		"broken":        {Err: memory.ErrServerError},
		"denied":        {Err: memory.ErrDenied},
		"no bucket":     {Err: memory.ErrNoBucket},
		"no folder":     {Err: fmt.Errorf("%w: %w", store.ErrNoBucket, fs.ErrNotExist)}, // not what waits does not exist
		"skewed":        {Err: memory.ErrSkewed},
		"expired":       {Err: memory.ErrExpired},
		"only readable": {Err: memory.ErrDenied, Op: memory.Put},
	} {
		t.Run(name, func(t *testing.T) {
			s := begun(t)
			s.store.Inject(fault)
			var last int64
			for round := range 3 {
				for i := range 20 {
					last = s.put(fmt.Sprint("key", i), fmt.Sprint(round))
				}
				s.BeforeCompaction(t.Context())
				s.compact(last)
			}
			s.eventually(func(f Facts) bool { return f.Trouble != nil && f.SpoolBytes > 0 }, "it is said")
			trouble := s.Facts().Trouble
			assert.Contains(t, trouble.Text, "cannot ")
			assert.NotEqual(t, Unknown, s.Facts().Role)
			assert.False(t, trouble.NextTry.IsZero())

			s.store.Heal()
			require.NoError(t, s.Flush(t.Context()))
			assert.Equal(t, last, s.Facts().Stored)
			s.requireChains(1)
			assert.Equal(t, last, s.chains()[0].To)
			_, _, path := kept(t, s.store, archive.Target{Revision: last - 30})
			assert.Equal(t, last-30, path.Revision)
			s.eventually(func(f Facts) bool { return f.Trouble == nil }, "it is over")
			assert.Equal(t, 1, strings.Count(s.log.String(), "they go on"))
		})
	}
}

func TestRepliesThatAreLostAreNoTrouble(t *testing.T) {
	s := newStand(t)
	s.store.Inject(memory.Fault{Op: memory.Put, Err: memory.ErrLostReply, ReplyLost: true})
	s.run()
	for i := range 5 {
		s.awaitStored(s.put("a", fmt.Sprint(i)))
	}
	assert.Zero(t, s.Facts().Failures)
	s.requireAllKept()
	s.requireChains(1)
}

func TestAStoreThatHangsHoldsUpNoCapture(t *testing.T) {
	s := begun(t)
	s.store.Inject(memory.Fault{Hang: true})
	for round := range 3 {
		last := s.put("a", fmt.Sprint(round))
		s.BeforeCompaction(t.Context())
		s.compact(last)
		s.eventually(func(Facts) bool { return s.waits() > round }, "it is captured")
	}
	s.closesTransactions()
	s.store.Heal()
	s.end() // which gives the request up
	s.run()
	require.NoError(t, s.Flush(t.Context()))
	s.requireChains(1)
}

func TestAFlushThatTheStoreDoesNotTakeSaysWhatIsMissing(t *testing.T) {
	s := begun(t)
	s.store.Inject(memory.Fault{Err: memory.ErrUnreachable})
	last := s.put("a", "1")
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	err := s.Flush(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	assert.ErrorContains(t, err, fmt.Sprintf("revisions %d to %d are not in the store", s.Facts().Stored+1, last))
}

// The store is away from the start: what an earlier process has seen there is there.
func TestAFlushDoesNotMissWhatAnEarlierProcessHasStored(t *testing.T) {
	s := begun(t)
	stored := s.put("a", "1")
	s.awaitStored(stored)
	s.end()
	s.store.Inject(memory.Fault{Err: memory.ErrUnreachable})
	s.run()
	last := s.put("a", "2")
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	assert.ErrorContains(t, s.Flush(ctx), fmt.Sprintf("revisions %d to %d are not in the store", stored+1, last))
	assert.EqualValues(t, last-stored, s.Facts().Behind)
}

func TestAfterARestartItGoesOnFromTheHeadTheSpoolAndTheDatabase(t *testing.T) {
	s := begun(t)
	s.store.Inject(memory.Fault{Err: memory.ErrUnreachable})
	last := s.put("a", "spooled")
	s.BeforeCompaction(t.Context())
	s.compact(last)
	s.end()
	s.put("a", "only in the database")

	s.run() // the store is still away, and the spool says where to go on
	last = s.put("a", "compacted while the store is away")
	s.BeforeCompaction(t.Context())
	s.compact(last)
	s.end()
	s.store.Heal()
	s.run()
	require.NoError(t, s.Flush(t.Context()))
	s.requireChains(1)
	assert.Equal(t, s.etcd.Revision(), s.chains()[0].To)
}

func TestAGapIsAnsweredWithAFullAtOnce(t *testing.T) {
	s := begun(t)
	s.end()
	s.put("a", "1")
	s.put("a", "2")
	last := s.put("a", "3")
	s.compact(last)
	s.run()
	s.awaitStored(last)
	s.eventually(func(f Facts) bool { return f.LastFull != nil }, "a full is made")
	assert.Contains(t, s.Facts().LastFull.Reason, "gap: etcd was compacted at revision")
	require.NoError(t, s.Flush(t.Context()))
	s.requireChains(2)
	s.awaitStored(s.put("a", "4"))
	s.requireAllKept()
	s.eventually(func(f Facts) bool { return f.Broken == nil && f.Trouble == nil }, "nothing is wrong any more")
}

func TestAStoreThatOverwritesIsWrittenByTheLeaderAlone(t *testing.T) {
	s := newStand(t)
	s.store.Inject(memory.Fault{Op: memory.Put, Overwrite: true})
	s.run()
	s.awaitStored(s.put("a", "1"))
	assert.False(t, s.Facts().CreateIfAbsent)
	s.requireAllKept()
	assert.False(t, known{guest: true}.ours())
	assert.True(t, known{guest: true, creates: true}.ours())
}

func TestAGateThatDoesNotOpenKeepsAFullWaitingAndNothingElse(t *testing.T) {
	s := newStand(t)
	gate := &gate{open: make(chan struct{})}
	s.options.Gate = gate
	close(gate.open)
	s.run()
	s.awaitStored(s.put("a", "1"))
	s.end()
	gate.open = make(chan struct{})
	s.run()
	asked := make(chan error, 1)
	go func() { _, err := s.FullNow(t.Context(), "asked for"); asked <- err }()
	s.eventually(func(f Facts) bool { return f.FullRunning != nil }, "it waits")
	s.awaitStored(s.put("a", "2"))
	s.closesTransactions()
	close(gate.open)
	require.NoError(t, <-asked)
	s.requireChains(1)
	s.requireAllKept()
}

type gate struct{ open chan struct{} }

func (g *gate) Begin(ctx context.Context, _ string) (func(), error) {
	select {
	case <-g.open:
		return func() {}, nil
	case <-ctx.Done():
		return nil, errors.New("gave up")
	}
}

func TestCapturesAreFartherApartWhileTheStoreIsAway(t *testing.T) {
	s := &Writer{options: Options{Interval: time.Second, Now: time.Now}}
	s.chain.captured = time.Now().Add(-2 * time.Second)
	assert.True(t, s.timeToCapture())
	s.trouble(aboutSegment).began = time.Now().Add(-5 * time.Second)
	assert.False(t, s.timeToCapture(), "every segment costs a request later")
	s.chain.captured = time.Now().Add(-slower * time.Second)
	assert.True(t, s.timeToCapture())
}

func TestAStoreThatDoesNotAnswerIsTrouble(t *testing.T) {
	s := &Writer{options: Options{Now: time.Now}}
	s.ask()
	assert.Nil(t, s.troubleNow())
	s.remote.asked = time.Now().Add(-time.Minute)
	assert.Contains(t, s.troubleNow().Text, "the store has not answered for 1m")
	assert.True(t, s.away())
}

func TestHowOftenSomethingFailedInARowIsTold(t *testing.T) {
	s := begun(t)
	require.NoError(t, s.tell(t.Context(), func() {
		s.failed(aboutReservation, "cannot", memory.ErrUnreachable)
		assert.Equal(t, 1, s.troubleNow().Times)
		for range 3 {
			s.failed(aboutFull, "cannot", memory.ErrUnreachable)
		}
		assert.Equal(t, 3, s.troubleNow().Times, "of two the one that fails more often")
		s.stuck(memory.ErrUnreachable)
		s.succeeded(aboutReservation)
		s.succeeded(aboutFull)
		assert.Equal(t, 1, s.troubleNow().Times)
		s.stuck(memory.ErrUnreachable)
		assert.Equal(t, 2, s.troubleNow().Times)
		s.local = nil
		assert.Nil(t, s.troubleNow())
		s.failed(aboutFull, "cannot", memory.ErrUnreachable)
		assert.Equal(t, 1, s.troubleNow().Times, "it begins anew")
	}))
}
