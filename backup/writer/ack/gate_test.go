package ack

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// start calls wait in a goroutine and returns a channel that receives its result.
func start(ctx context.Context, wait func(context.Context) error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- wait(ctx) }()
	synctest.Wait()
	return done
}

func requireWaits(t *testing.T, done <-chan error) {
	t.Helper()
	synctest.Wait()
	select {
	case err := <-done:
		assert.Fail(t, "the reply must wait", "Wait returned %v", err)
	default:
	}
}

func requirePasses(t *testing.T, done <-chan error) {
	t.Helper()
	synctest.Wait()
	select {
	case err := <-done:
		assert.NoError(t, err)
	default:
		assert.Fail(t, "the reply is still waiting")
	}
}

// atLeast returns a function that waits until the store has the revision.
func atLeast(g *Gate, revision int64) func(context.Context) error {
	return func(ctx context.Context) error { return g.Wait(ctx, revision) }
}

func TestReplyPassesOnceItsRevisionIsStored(t *testing.T) {
	for name, c := range map[string]struct {
		reply  int64         // revision that the reply depends on
		stored int64         // last stored revision
		age    time.Duration // time since the last upload
		passes bool
	}{
		"read at the last stored revision":           {5, 5, 0, true},
		"read at an earlier revision":                {4, 5, Validity - 1, true},
		"write that is not stored":                   {6, 5, 0, false},
		"read long after the last upload":            {5, 5, Validity, false},
		"reply without a revision, gate closed":      {0, 0, 0, false},
		"reply without a revision, gate open":        {0, 1, 0, true},
		"reply without a revision, old upload":       {0, 5, Validity, false},
		"read of a revision that the store has lost": {5, 3, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := NewGate()
				g.Confirm(5, 0, time.Now())
				g.Confirm(c.stored, 0, time.Now().Add(-c.age))
				ctx, cancel := context.WithCancel(t.Context())
				done := start(ctx, atLeast(g, c.reply))
				if c.passes {
					requirePasses(t, done)
				} else {
					requireWaits(t, done)
				}
				cancel()
			})
		})
	}
}

func TestRepliesWaitUntilTheirOwnRevisionIsStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGate()
		first, second := start(t.Context(), atLeast(g, 2)), start(t.Context(), atLeast(g, 3))
		requireWaits(t, first)
		assert.Len(t, g.Wake(), 1, "the first waiting reply wakes the writer")
		g.Confirm(2, 0, time.Now())
		requirePasses(t, first)
		requireWaits(t, second)
		g.Confirm(3, 0, time.Now())
		requirePasses(t, second)
	})
}

func TestReplyWithoutARevisionWaitsForACaptureThatFollowsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGate()
		g.Confirm(9, 0, time.Now())
		first := start(t.Context(), g.WaitAll)
		captured := g.Requests()
		second := start(t.Context(), g.WaitAll)
		g.Confirm(10, 0, time.Now())
		requireWaits(t, first)
		g.Confirm(10, captured, time.Now())
		requirePasses(t, first)
		requireWaits(t, second)
		g.Confirm(10, g.Requests(), time.Now())
		requirePasses(t, second)
		g.Confirm(11, 0, time.Now())
		requireWaits(t, start(t.Context(), g.WaitAll))
		g.Close(errors.New("the test ends"))
	})
}

func TestWaitEndsWithItsContextAndWithTheGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, gone, stopped := NewGate(), errors.New("gone"), errors.New("stopped")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancelled, closed := start(ctx, atLeast(g, 1)), start(t.Context(), g.WaitAll)
		cancel(gone)
		assert.ErrorIs(t, <-cancelled, gone)
		g.Close(stopped)
		assert.ErrorIs(t, <-closed, stopped)
		g.Confirm(7, g.Requests(), time.Now())
		assert.ErrorIs(t, g.Wait(t.Context(), 7), stopped, "no reply passes after Close")
	})
}

func TestGateIsOpenWhileTheStoreIsThisClusters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGate()
		assert.False(t, g.IsOpen())
		g.Confirm(3, 0, time.Now())
		assert.True(t, g.IsOpen())
		assert.EqualValues(t, 3, g.Revision())
		time.Sleep(Validity)
		assert.False(t, g.IsOpen())
		waiting := start(t.Context(), atLeast(g, 3))
		requireWaits(t, waiting)
		g.Confirm(3, 0, time.Now())
		requirePasses(t, waiting)
	})
}

func TestGateClosesWhileTheMachineIsSuspended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGate()
		g.Confirm(3, 0, time.Now())
		assert.True(t, g.IsOpen())
		// While the machine is suspended, only the wall clock advances.
		g.wall = func() time.Time { return time.Now().Round(0).Add(Validity) }
		assert.False(t, g.IsOpen())
	})
}

func TestWithoutAGateNothingWakesTheWriter(t *testing.T) {
	var none *Gate
	assert.Nil(t, none.Wake())
	assert.Zero(t, none.Requests())
}
