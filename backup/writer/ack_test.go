package writer

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store/memory"
	"etcd-wrapper/backup/writer/ack"
)

const segments = "gen/000001/segment/"

// confirming returns a stand whose writer confirms stored revisions.
func confirming(t *testing.T) *stand {
	t.Helper()
	s := newStand(t)
	s.options.Ack, s.options.Interval = ack.NewGate(), 0
	return s
}

// waiting calls wait in a goroutine and returns a channel for its result.
func (s *stand) waiting(wait func(ctx context.Context) error) <-chan error {
	s.Helper()
	done := make(chan error, 1)
	go func() { done <- wait(s.Context()) }()
	return done
}

func (s *stand) stored(revision int64) <-chan error {
	s.Helper()
	return s.waiting(func(ctx context.Context) error { return s.options.Ack.Wait(ctx, revision) })
}

// requireWaits requires that a reply is still waiting.
func (s *stand) requireWaits(done <-chan error) {
	s.Helper()
	assert.Never(s, func() bool { return len(done) > 0 }, 10*poll, poll)
}

func (s *stand) requireConfirmed(done <-chan error) {
	s.Helper()
	select {
	case err := <-done:
		require.NoError(s, err)
	case <-time.After(patience):
		require.FailNow(s, "nothing is confirmed")
	}
}

// hold blocks uploads of objects with the given prefix until release is called.
func (s *stand) hold(prefix string) (uploading <-chan struct{}, release func()) {
	begun, released := make(chan struct{}, 100), make(chan struct{})
	s.store.Inject(memory.Fault{Op: memory.Put, Prefix: prefix, First: func() {
		begun <- struct{}{}
		select {
		case <-released:
		case <-s.Context().Done():
		}
	}})
	return begun, func() { s.store.ClearFaults(); close(released) }
}

// Each reply must wait for a new capture, because etcd may reply to a request before its applied index includes the
// request.
func TestAck_everyWaitHasACaptureOfItsOwn(t *testing.T) {
	s := confirming(t)
	etcd := s.options.Etcd
	s.options.Etcd = &faked{Etcd: etcd, applied: func() uint64 { return 1 }}
	s.run()
	s.requireConfirmed(s.stored(s.put("a", "1")))
	for range 3 {
		_, err := s.etcd.Client.Grant(t.Context(), 100)
		require.NoError(t, err)
		s.requireConfirmed(s.waiting(s.options.Ack.WaitAll))
	}
	_, reading, _ := kept(t, s.store, archive.Target{})
	for _, bucket := range reading.Buckets {
		if bucket.Name == "lease" {
			assert.Equal(t, 3, bucket.Len())
		}
	}
}

func TestAck_intervalIsTheShortestTimeBetweenTwoUploads(t *testing.T) {
	s := confirming(t)
	s.options.Interval = 200 * time.Millisecond
	s.run()
	s.requireConfirmed(s.stored(s.put("a", "1")))
	started, before := time.Now(), s.Facts().Segments
	for i := range 20 {
		s.requireConfirmed(s.stored(s.put("a", fmt.Sprint(i))))
	}
	assert.LessOrEqual(t, s.Facts().Segments-before, int64(time.Since(started)/s.options.Interval)+1)
}

func TestAck_waitWakesTheWriter(t *testing.T) {
	s := confirming(t).run()
	s.requireConfirmed(s.stored(s.put("a", "1")))
	require.NoError(t, s.Flush(t.Context()))
	s.do(func() { s.pace.tick = 10 * patience })
	s.requireConfirmed(s.stored(s.put("a", "2")))
	s.requireConfirmed(s.waiting(s.options.Ack.WaitAll))
}

// The validity must start with the first attempt even if it fails, because the failed attempt may have created the
// object.
func TestAck_validityStartsWithTheFirstAttempt(t *testing.T) {
	s := confirming(t).run()
	s.requireConfirmed(s.stored(s.put("a", "1")))
	began := make(chan time.Time, 1)
	s.store.Inject(memory.Fault{Op: memory.Put, Prefix: segments, Err: memory.ErrLostReply, ReplyLost: true, Times: 1, First: func() { began <- time.Now() }})
	s.store.Inject(memory.Fault{Op: memory.Get, Prefix: segments, Err: memory.ErrServerError})
	s.store.Inject(memory.Fault{Op: memory.Put, Prefix: segments, First: s.store.ClearFaults}) // the second attempt succeeds
	s.requireConfirmed(s.stored(s.put("a", "2")))
	first := <-began
	s.do(func() { assert.False(t, s.remote.uploadedAt.After(first)) })
}

func TestAck_captureOfAnEarlierChainAnswersNobody(t *testing.T) {
	s := confirming(t).run()
	s.requireConfirmed(s.stored(s.put("a", "1")))
	s.requireConfirmed(s.waiting(s.options.Ack.WaitAll))
	s.end()
	require.False(t, s.chain.isAsked())
	s.chain.reset()
	assert.True(t, s.chain.isAsked(), "the end of the previous chain is forgotten")
}

func TestAck_heartbeatIsDue(t *testing.T) {
	for name, due := range map[string]func(s *stand){
		"the gate is closed, as the clock was set forward or the machine suspended": func(s *stand) {
			s.options.Ack.Confirm(0, 0, time.Now())
			s.capture()
		},
		"the last upload is old, and a read of the store does not show others that this cluster is active": func(s *stand) {
			s.pace.heartbeat = ack.Validity / 2 // keeps the gate open
			s.remote.uploadedAt, s.remote.storedAt = time.Now().Add(-s.pace.heartbeat-time.Second), time.Now()
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := confirming(t).run()
			s.requireConfirmed(s.stored(s.put("a", "1")))
			require.NoError(t, s.Flush(t.Context()))
			before := s.Facts().Segments
			s.do(func() { due(s) })
			s.eventually(func(f Facts) bool { return f.Segments > before }, "a heartbeat is stored")
			require.True(t, s.options.Ack.IsOpen())
		})
	}
}

func TestAck_captureForAFullSnapshotIsNotComplete(t *testing.T) {
	s := confirming(t).run()
	s.requireConfirmed(s.stored(s.put("a", "1")))
	s.end() // stop the writer; otherwise, it might capture both writes
	last := s.put("a", "2")
	s.put("a", "3")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.Error(t, s.options.Ack.WaitAll(ctx))
	require.NoError(t, s.chain.captureThrough(last))
	assert.True(t, s.chain.isAsked(), "the last row is not captured")
}

func TestAck_nothingPassesOnceAnotherClusterContinues(t *testing.T) {
	s := confirming(t).run()
	s.requireConfirmed(s.stored(s.put("a", "1")))
	s.do(func() { s.core.State = ended })
	require.Eventually(t, func() bool { return !s.options.Ack.IsOpen() }, patience, poll)
}

func TestAck_uploadsAreCutOffSoonAtFirst(t *testing.T) {
	h := newHealth(0)
	assert.Equal(t, requestTimeout, h.uploadTimeout(), "no client waits")
	h.options.Ack = ack.NewGate()
	assert.Equal(t, firstUploadTimeout, h.uploadTimeout())
	for count, want := range map[int]time.Duration{1: 2 * firstUploadTimeout, 3: 8 * firstUploadTimeout, 100: requestTimeout} {
		h.problems[opSegment] = &problem{}
		h.problems[opSegment].Count = count
		assert.Equal(t, want, h.uploadTimeout(), count)
	}
}

// checked returns a stand whose next check verifies the last stored segment.
func checked(t *testing.T) *stand {
	s := startedStand(t)
	for i := range 3 {
		s.awaitStored(s.put("a", fmt.Sprint(i)))
	}
	s.do(func() { s.remote.checkpoint = s.remote.lastStored() })
	return s
}

func (s *stand) check() { s.do(func() { s.pace.check = 0 }) }

// Checks are frequent, so a check must take no more than one request.
func TestWriter_checksWithOneRequest(t *testing.T) {
	s := checked(t)
	require.NoError(t, s.Flush(t.Context()))
	before := len(s.store.Calls())
	s.do(func() {
		s.pace.check = 0
		s.remote.checkStored()
		s.pace.check = patience
	})
	s.eventually(func(Facts) bool { return len(s.store.Calls()) > before }, "the store is checked")
	s.do(func() {})
	assert.Len(t, s.store.Calls(), before+1)
}

// If an inspection finishes during a check of the store, the check must still detect that the generation was deleted.
func TestWriter_checksTheOwnerAfterAnInspection(t *testing.T) {
	s := checked(t)
	const name = "gen/000001/generation.json"
	require.NoError(t, s.store.Delete(t.Context(), name))
	s.do(func() {
		s.remote.ownerVerified = time.Time{}
		s.remote.checkStored()
		s.remote.checkpoint = format.Position{}
	})
	require.Eventually(t, func() bool {
		_, exists := s.store.Content(name)
		return exists
	}, patience/2, poll, "the generation is created again")
}

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "8") // high because the tests mostly wait; can be overridden with -parallel
	os.Exit(m.Run())
}

// When the process is killed, the request in flight may or may not take effect, and its response is lost.
func TestKill_losesNothing(t *testing.T) {
	s := newStand(t)
	s.options.Interval = 20 * time.Millisecond
	for _, happens := range []bool{false, true} {
		for last := 1; s.died(last, happens) >= last; last++ {
		}
	}
}

// died runs the writer on an empty store, kills it at the given call to the store, restarts it, and returns the
// number of calls before the kill.
func (s *stand) died(last int, happens bool) int {
	s.Helper()
	s.store = memory.New()
	if happens {
		s.store.Inject(memory.Fault{After: last - 1, Times: 1, Hang: true, ReplyLost: true})
	}
	s.store.Inject(memory.Fault{After: last - 1, Hang: true})
	s.options.SpoolDir = filepath.Join(s.TempDir(), "spool")
	s.run()
	var confirmed int64
	for i := range 4 {
		written := s.put("a", fmt.Sprint(last, i))
		s.eventually(func(f Facts) bool { return f.Revision >= written || len(s.store.Calls()) >= last }, "the revision is stored, or the writer is killed")
		confirmed = max(confirmed, s.Facts().Revision)
	}
	calls := len(s.store.Calls())
	s.end()
	s.store.ClearFaults()
	found, err := s.backups().Find(s.Context(), archive.Target{})
	if confirmed > 0 {
		require.NoError(s, err)
		assert.GreaterOrEqual(s, found.Revision, confirmed, "what was stored is there, call %d", last)
	}
	s.run()
	written := s.put("a", "afterwards")
	s.requireWhole()
	s.end()
	assert.GreaterOrEqual(s, s.Facts().Revision, written)
	s.requireNothingLoose()
	return calls
}
