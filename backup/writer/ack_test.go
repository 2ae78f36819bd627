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

// newAckHarness returns a harness in which replies wait for the store (Options.Ack) and changes are captured without
// an interval.
func newAckHarness(t *testing.T) *harness {
	t.Helper()
	s := newHarness(t)
	s.options.Ack, s.options.Interval = ack.NewGate(), 0
	return s
}

// startWait calls wait in a goroutine and returns a channel for its result.
func (s *harness) startWait(wait func(ctx context.Context) error) <-chan error {
	s.Helper()
	done := make(chan error, 1)
	go func() { done <- wait(s.Context()) }()
	return done
}

// startAckWait waits in a goroutine until a revision is confirmed, and returns a channel for the result.
func (s *harness) startAckWait(revision int64) <-chan error {
	s.Helper()
	return s.startWait(func(ctx context.Context) error { return s.options.Ack.Wait(ctx, revision) })
}

// requireWaits requires that the result of startWait or startAckWait does not arrive for a while.
func (s *harness) requireWaits(done <-chan error) {
	s.Helper()
	assert.Never(s, func() bool { return len(done) > 0 }, 10*poll, poll)
}

func (s *harness) requireConfirmed(done <-chan error) {
	s.Helper()
	select {
	case err := <-done:
		require.NoError(s, err)
	case <-time.After(patience):
		require.FailNow(s, "the reply is still waiting")
	}
}

// hold blocks uploads of objects with the given name prefix until release is called. uploading receives a value for
// each blocked upload.
func (s *harness) hold(prefix string) (uploading <-chan struct{}, release func()) {
	started, released := make(chan struct{}, 100), make(chan struct{})
	s.store.Inject(memory.Fault{Op: memory.Put, Prefix: prefix, First: func() {
		started <- struct{}{}
		select {
		case <-released:
		case <-s.Context().Done():
		}
	}})
	return started, func() { s.store.ClearFaults(); close(released) }
}

// Each reply must wait for a new capture, because etcd may reply to a request before its applied index includes the
// request.
func TestAck_everyWaitRequiresANewCapture(t *testing.T) {
	s := newAckHarness(t)
	etcd := s.options.Etcd
	s.options.Etcd = &fakeEtcd{Etcd: etcd, applied: func() uint64 { return 1 }}
	s.run()
	s.requireConfirmed(s.startAckWait(s.put("a", "1")))
	for range 3 {
		_, err := s.etcd.Client.Grant(t.Context(), 100)
		require.NoError(t, err)
		s.requireConfirmed(s.startWait(s.options.Ack.WaitAll))
	}
	_, reading, _ := restoreTarget(t, s.store, archive.Target{})
	for _, bucket := range reading.Buckets {
		if bucket.Name == "lease" {
			assert.Equal(t, 3, bucket.Len())
		}
	}
}

func TestAck_intervalIsTheShortestTimeBetweenTwoUploads(t *testing.T) {
	s := newAckHarness(t)
	s.options.Interval = 200 * time.Millisecond
	s.run()
	s.requireConfirmed(s.startAckWait(s.put("a", "1")))
	started, before := time.Now(), s.Facts().Segments
	for i := range 20 {
		s.requireConfirmed(s.startAckWait(s.put("a", fmt.Sprint(i))))
	}
	assert.LessOrEqual(t, s.Facts().Segments-before, int64(time.Since(started)/s.options.Interval)+1)
}

func TestAck_waitWakesTheWriter(t *testing.T) {
	s := newAckHarness(t).run()
	s.requireConfirmed(s.startAckWait(s.put("a", "1")))
	require.NoError(t, s.Flush(t.Context()))
	s.do(func() { s.pace.tick = 10 * patience })
	s.requireConfirmed(s.startAckWait(s.put("a", "2")))
	s.requireConfirmed(s.startWait(s.options.Ack.WaitAll))
}

// The period in which the gate stays open must be counted from the first attempt to upload a segment, even if the
// attempt fails, because it may have created the object.
func TestAck_validityStartsWithTheFirstAttempt(t *testing.T) {
	s := newAckHarness(t).run()
	s.requireConfirmed(s.startAckWait(s.put("a", "1")))
	firstAttempt := make(chan time.Time, 1)
	s.store.Inject(memory.Fault{Op: memory.Put, Prefix: segments, Err: memory.ErrLostReply, ReplyLost: true, Times: 1, First: func() { firstAttempt <- time.Now() }})
	s.store.Inject(memory.Fault{Op: memory.Get, Prefix: segments, Err: memory.ErrServerError})
	s.store.Inject(memory.Fault{Op: memory.Put, Prefix: segments, First: s.store.ClearFaults}) // the second attempt succeeds
	s.requireConfirmed(s.startAckWait(s.put("a", "2")))
	first := <-firstAttempt
	s.do(func() { assert.False(t, s.remote.uploadedAt.After(first)) })
}

func TestAck_captureOfAPreviousChainDoesNotCount(t *testing.T) {
	s := newAckHarness(t).run()
	s.requireConfirmed(s.startAckWait(s.put("a", "1")))
	s.requireConfirmed(s.startWait(s.options.Ack.WaitAll))
	s.stop()
	require.False(t, s.chain.isAsked())
	s.chain.reset()
	assert.True(t, s.chain.isAsked(), "the capture before the reset no longer counts")
}

func TestAck_heartbeatIsDue(t *testing.T) {
	for name, due := range map[string]func(s *harness){
		"the gate was closed by a clock change or a suspended machine": func(s *harness) {
			s.options.Ack.Confirm(0, 0, time.Now())
			s.capture()
		},
		"the last upload is old, although the store was just read": func(s *harness) {
			s.pace.heartbeat = ack.Validity / 2 // short enough for the gate to stay open
			s.remote.uploadedAt, s.remote.storedAt = time.Now().Add(-s.pace.heartbeat-time.Second), time.Now()
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newAckHarness(t).run()
			s.requireConfirmed(s.startAckWait(s.put("a", "1")))
			require.NoError(t, s.Flush(t.Context()))
			before := s.Facts().Segments
			s.do(func() { due(s) })
			s.eventually(func(f Facts) bool { return f.Segments > before }, "a heartbeat is stored")
			require.True(t, s.options.Ack.IsOpen())
		})
	}
}

func TestAck_captureForAFullSnapshotIsNotComplete(t *testing.T) {
	s := newAckHarness(t).run()
	s.requireConfirmed(s.startAckWait(s.put("a", "1")))
	s.stop() // a running writer might capture both writes
	last := s.put("a", "2")
	s.put("a", "3")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.Error(t, s.options.Ack.WaitAll(ctx))
	require.NoError(t, s.chain.captureThrough(last))
	assert.True(t, s.chain.isAsked(), "the revision after the full snapshot is not captured yet")
}

func TestAck_nothingPassesOnceAnotherClusterContinues(t *testing.T) {
	s := newAckHarness(t).run()
	s.requireConfirmed(s.startAckWait(s.put("a", "1")))
	s.do(func() { s.core.State = ended })
	require.Eventually(t, func() bool { return !s.options.Ack.IsOpen() }, patience, poll)
}

func TestAck_firstUploadHasAShortTimeout(t *testing.T) {
	h := newHealth(0)
	assert.Equal(t, requestTimeout, h.uploadTimeout(), "without acknowledgements, no client waits for an upload")
	h.options.Ack = ack.NewGate()
	assert.Equal(t, firstUploadTimeout, h.uploadTimeout())
	for count, want := range map[int]time.Duration{1: 2 * firstUploadTimeout, 3: 8 * firstUploadTimeout, 100: requestTimeout} {
		h.problems[opSegment] = &problem{}
		h.problems[opSegment].Count = count
		assert.Equal(t, want, h.uploadTimeout(), count)
	}
}

// newCheckedHarness returns a harness with several segments. The next check verifies that the last one still exists.
func newCheckedHarness(t *testing.T) *harness {
	s := newStartedHarness(t)
	for i := range 3 {
		s.awaitStored(s.put("a", fmt.Sprint(i)))
	}
	s.do(func() { s.remote.checkpoint = s.remote.lastStored() })
	return s
}

// check makes the writer check on every tick that stored segments still exist.
func (s *harness) check() { s.do(func() { s.pace.check = 0 }) }

// The writer checks for deleted segments every ten seconds, so a check must take no more than one request.
func TestWriter_checksWithOneRequest(t *testing.T) {
	s := newCheckedHarness(t)
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

// A check must detect that the generation was deleted, even if an inspection finishes while the check is running.
func TestWriter_checksTheOwnerAfterAnInspection(t *testing.T) {
	s := newCheckedHarness(t)
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
	_ = flag.Set("test.parallel", "8") // more than the CPUs of a small machine, because the tests mostly wait
	os.Exit(m.Run())
}

// No stored revision may be lost if the process is killed during any of its requests. The request may or may not take
// effect, and its response is lost.
func TestKill_losesNothing(t *testing.T) {
	s := newHarness(t)
	s.options.Interval = 20 * time.Millisecond
	for _, applied := range []bool{false, true} {
		for last := 1; s.runAndKill(last, applied) >= last; last++ {
		}
	}
}

// runAndKill runs a writer on an empty store, kills it during the call with number last, and runs another writer. If
// applied is set, the call takes effect. runAndKill returns the number of calls that the first writer made.
func (s *harness) runAndKill(last int, applied bool) int {
	s.Helper()
	s.store = memory.New()
	if applied {
		s.store.Inject(memory.Fault{After: last - 1, Times: 1, Hang: true, ReplyLost: true})
	}
	s.store.Inject(memory.Fault{After: last - 1, Hang: true})
	s.options.SpoolDir = filepath.Join(s.TempDir(), "spool")
	s.run()
	var confirmed int64
	for i := range 4 {
		written := s.put("a", fmt.Sprint(last, i))
		s.eventually(func(f Facts) bool { return f.Revision >= written || len(s.store.Calls()) >= last }, "the revision is stored, or the writer has made the last call")
		confirmed = max(confirmed, s.Facts().Revision)
	}
	calls := len(s.store.Calls())
	s.stop()
	s.store.ClearFaults()
	found, err := s.backups().Find(s.Context(), archive.Target{})
	if confirmed > 0 {
		require.NoError(s, err)
		assert.GreaterOrEqual(s, found.Revision, confirmed, "all confirmed revisions can be restored after a kill at call %d", last)
	}
	s.run()
	written := s.put("a", "afterwards")
	s.requireWhole()
	s.stop()
	assert.GreaterOrEqual(s, s.Facts().Revision, written)
	s.requireNoLooseSegments()
	return calls
}
