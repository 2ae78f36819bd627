package readiness

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func hang(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestHangingReadMeansNoQuorum(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		target := newTarget()
		m := watched(t, target, new(bytes.Buffer))
		target.set(func(m *fakeTarget) { m.read = hang })
		require.LessOrEqual(t, timeUntil(t, m, false), 1400*time.Millisecond, "the next read's start and its timeout")
		require.Equal(t, "a linearizable read got no answer within 1s", quorumCheck(m).Reason)

		target.set(func(m *fakeTarget) { m.read = func(context.Context) error { return nil } })
		target.elect()
		require.LessOrEqual(t, timeUntil(t, m, true), 500*time.Millisecond)
	})
}

func TestFailingReadIsRetriedSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		target := newTarget()
		target.read = func(context.Context) error { return errors.New("not ready") }
		m := watched(t, target, new(bytes.Buffer))
		require.Equal(t, "a linearizable read failed: not ready", quorumCheck(m).Reason)
		pass(777 * time.Millisecond)
		target.set(func(m *fakeTarget) { m.read = func(context.Context) error { return nil } })
		require.LessOrEqual(t, timeUntil(t, m, true), 2*retryInterval)
	})
}

func TestLostLeaderIsNoticedWhileReadHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		target := newTarget()
		m := watched(t, target, new(bytes.Buffer))
		target.set(func(m *fakeTarget) { m.read = hang })
		pass(readInterval + 50*time.Millisecond)
		require.True(t, ready(m), "a read hangs, but has time")

		target.set(func(m *fakeTarget) { m.noLeader = true })
		require.LessOrEqual(t, timeUntil(t, m, false), factsInterval)
		require.Equal(t, "the cluster has no leader", quorumCheck(m).Reason)

		before := target.reads
		pass(time.Minute)
		require.Equal(t, before, target.reads, "nobody could answer")
		target.set(func(m *fakeTarget) { m.read = func(context.Context) error { return nil } })
		target.elect()
		synctest.Wait()
		require.True(t, ready(m), "at once")
	})
}

func TestRegainedLeaderIsNoticedWithoutNotification(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		target := newTarget()
		target.noLeader = true
		m := watched(t, target, new(bytes.Buffer))
		pass(250 * time.Millisecond)
		target.set(func(m *fakeTarget) { m.noLeader = false })
		require.LessOrEqual(t, timeUntil(t, m, true), factsInterval)
	})
}

func TestNewLeaderMustConfirm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		target := newTarget()
		answer := make(chan struct{})
		m := watched(t, target, new(bytes.Buffer))
		target.set(func(m *fakeTarget) { m.read = func(context.Context) error { <-answer; return nil } })
		pass(readInterval)
		target.set(func(m *fakeTarget) { m.noLeader = true; m.read = hang })
		pass(factsInterval)
		target.elect()
		close(answer) // of the old leader, late
		synctest.Wait()
		require.False(t, ready(m))
		require.Equal(t, "no linearizable read has succeeded since the leader is known", quorumCheck(m).Reason)
		require.Equal(t, 3, target.reads)
	})
}

func TestLeaderTransferKeepsReadyAndReadsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		target := newTarget()
		m := watched(t, target, new(bytes.Buffer))
		for range 20 {
			before := target.reads
			target.elect()
			synctest.Wait()
			require.Equal(t, before+1, target.reads)
			require.True(t, ready(m))
		}
	})
}

func TestLeaderChangeReplacesHangingRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		target := newTarget()
		target.read = hang
		m := watched(t, target, new(bytes.Buffer))
		pass(50 * time.Millisecond)
		target.set(func(m *fakeTarget) { m.read = func(context.Context) error { return nil } })
		target.elect()
		synctest.Wait()
		require.True(t, ready(m), "without waiting for the old read's timeout")
		require.Equal(t, 1, target.mostInFlight)
	})
}

func TestReadThatIgnoresItsTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		target := newTarget()
		release := make(chan struct{})
		m := watched(t, target, new(bytes.Buffer))
		target.set(func(m *fakeTarget) { m.read = func(context.Context) error { <-release; return nil } })
		require.LessOrEqual(t, timeUntil(t, m, false), readInterval+readTimeout)
		pass(time.Minute)
		require.False(t, ready(m))
		require.Equal(t, 1, target.mostInFlight)
		close(release)
		require.LessOrEqual(t, timeUntil(t, m, true), 2*retryInterval, "its own answer is too old, the next one counts")
	})
}

func TestALostQuorumNamesTheMembersThatAreMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		target := newTarget()
		m := watched(t, target, new(bytes.Buffer))
		target.set(func(m *fakeTarget) { m.missing = []string{"etcd-main-1"} })
		pass(factsInterval)
		require.Empty(t, quorumCheck(m).Reason, "two of three are enough")
		target.set(func(m *fakeTarget) { m.noLeader, m.missing = true, []string{"etcd-main-1", "etcd-main-2"} })
		pass(factsInterval)
		require.Equal(t, "the cluster has no leader; no connection to etcd-main-1, etcd-main-2: see that they run and can be reached", quorumCheck(m).Reason)
	})
}
