package writer

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/version"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/store/memory"
	"etcd-wrapper/internal/disk"
	shared "etcd-wrapper/member/maintenance"
)

// While the database does not change, only one full snapshot a day is made, even if the schedule requires more.
func TestFullSnapshot_unchangedDatabaseOnceADay(t *testing.T) {
	s := newHarness(t)
	wall := s.clock(time.Date(2026, 1, 1, 0, 30, 0, 0, time.UTC).Unix())
	s.options.Schedule = hourly
	require.Eventually(t, func() bool {
		storage := s.etcd.Server.StorageVersion() // etcd reports 3.5 until it has added the fields of 3.6
		return storage != nil && storage.Equal(version.V3_6)
	}, patience, poll, "etcd has migrated its database and no longer changes it")
	s.run()
	awaitFulls := func(fulls int64, what string) {
		s.Helper()
		s.eventually(func(f Facts) bool { return f.NextFullSnapshot.Unix() > wall.Load() }, "the next full snapshot is scheduled")
		s.eventually(func(f Facts) bool { return f.Fulls == fulls }, what)
		// The writer must notice that nothing has changed before the clock advances by another hour.
		require.NoError(t, s.Flush(t.Context()))
	}
	awaitFulls(1, "the first full snapshot")
	for range 22 {
		wall.Add(3600)
		awaitFulls(1, "nothing has changed")
	}
	wall.Add(3600)
	awaitFulls(2, "the last one is a day old")
	wall.Add(3600)
	awaitFulls(2, "nothing has changed")
	s.awaitStored(s.put("a", "1"))
	wall.Add(3600)
	awaitFulls(3, "a key has changed")
	s.addUser("someone")
	require.NoError(t, s.Flush(t.Context()))
	wall.Add(3600)
	awaitFulls(4, "a user has changed")
}

func TestFullSnapshot_scheduledOrMissed(t *testing.T) {
	s := newHarness(t)
	wall := s.clock(time.Date(2026, 1, 1, 0, 30, 0, 0, time.UTC).Unix())
	s.options.Schedule = hourly
	s.run()
	s.eventually(func(f Facts) bool { return f.Fulls == 1 && f.NextFullSnapshot.Minute() == 0 }, "the first full snapshot")
	s.awaitStored(s.put("a", "1"))
	wall.Add(1800)
	s.eventually(func(f Facts) bool { return f.Fulls == 2 }, "the scheduled full snapshot")
	assert.Equal(t, "schedule", s.Facts().LastFull.Reason)
	s.awaitStored(s.put("a", "2"))
	s.stop()
	wall.Add(5 * 3600)
	s.run()
	s.eventually(func(f Facts) bool { return f.Fulls == 1 }, "one full snapshot replaces all that were missed")
	assert.Equal(t, wall.Load()+3600, s.Facts().NextFullSnapshot.Unix())
	s.requireOneChain()
}

// The wait before the next attempt grows with the duration of the failed attempt, up to maxFullRetry.
func TestFullSnapshot_pauseAfterAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &snapshots{base: base{health: newHealth(0)}, making: &full{}}
		f.driver = f.health.driver
		assert.Equal(t, time.Second, f.backoff(time.Second), "the database has not been copied or uploaded")
		f.health.record(opFull, "failed", true)
		f.making.tried = time.Now()
		assert.Equal(t, time.Second, f.backoff(time.Second), "the failed attempt took no time")
		f.making.tried = time.Now().Add(-10 * time.Second)
		assert.Equal(t, 100*time.Second, f.backoff(time.Second))
		assert.Equal(t, time.Now().Add(100*time.Second), f.health.problems[opFull].NextRetry)
		f.making.tried = time.Now().Add(-time.Hour)
		assert.Equal(t, maxFullRetry, f.backoff(time.Second))
		assert.Equal(t, time.Hour, f.backoff(time.Hour), "a longer wait requested by the store has precedence")
		f.health.flushing = true
		assert.Equal(t, time.Second, f.backoff(time.Second), "Flush is waiting, so the next attempt may be the last one")
	})
}

func TestFullSnapshot_noTransactionDuringTheUpload(t *testing.T) {
	s := newHarness(t)
	s.options.Interval = 0
	// A capture may have a transaction open when the upload starts, but it must not wait for the upload.
	s.store.Inject(memory.Fault{Op: memory.Put, First: func() {
		assert.Eventually(t, func() bool { return s.chain.reader.Open() == 0 }, patience, poll)
	}})
	s.run()
	for i := range 10 {
		for range 20 {
			s.put("a", fmt.Sprint(i))
		}
		s.awaitStored(s.etcd.Revision())
		s.full()
	}
	fulls := s.store.CountCalls(memory.Put, "gen/000001/full/")
	assert.Equal(t, 22, fulls)
	assert.Greater(t, s.store.CountCalls(memory.Put, "")-fulls, 10)
}

func TestFullSnapshot_idleEtcd(t *testing.T) {
	s := newHarness(t).run(func(s *Writer) { s.pace.headValid = 50 * time.Millisecond })
	s.putAndFlush("a", "1")
	stored := time.Now()
	s.eventually(func(Facts) bool { return time.Since(stored) > 2*s.pace.headValid }, "the known end of the chain has expired")
	s.full()
	s.awaitStored(s.put("a", "2"))
	s.requireOneChain()
}

func TestFullSnapshot_delaysDefragmentation(t *testing.T) {
	s := newHarness(t)
	refusals := make(chan string, 1)
	var maintenanceGate shared.Gate
	s.options.Gate = gate(func(ctx context.Context, what string) (func(), error) {
		end, err := maintenanceGate.Acquire(ctx, what)
		_, busy := maintenanceGate.Close("a defragmentation")
		refusals <- busy.Error()
		return end, err
	})
	s.run()
	assert.Regexp(t, `^the database is being read: wait for a full snapshot \(since [0-9:]+Z\) to finish$`, <-refusals)
}

func TestThrottledReader_pace(t *testing.T) {
	for name, c := range map[string]struct{ work, total time.Duration }{
		"compression":    {work: 4 * time.Millisecond, total: 4*4*time.Millisecond + 3*4*time.Millisecond},
		"a slow network": {work: time.Second, total: 4*time.Second + 3*maxPause},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				reader := &throttledReader{Reader: strings.NewReader(strings.Repeat("x", 4*pauseEvery)), sent: &atomic.Int64{}, throttled: true}
				piece := make([]byte, pauseEvery)
				for range 4 {
					_, err := io.ReadFull(reader, piece)
					require.NoError(t, err)
					time.Sleep(c.work)
				}
				assert.Equal(t, c.total, time.Since(start))
			})
		})
	}
}

func TestFullSnapshot_sealedWithoutACopy(t *testing.T) {
	s := newHarness(t)
	for i := range maxSegment>>20 + 2 {
		s.put(fmt.Sprint("a", i), strings.Repeat("x", 1<<20))
	}
	s.run(func(w *Writer) { w.snapshots.room = onlyForSegments })
	s.awaitStored(s.put("a", "1"))
	done := s.full()
	assert.Less(t, done.Data.Bytes, done.Database.Bytes)
	s.requireWhole()
}

// onlyForSegments simulates a volume that has room only for segments.
func onlyForSegments(size int64) error {
	if size > maxSegment {
		return ErrSpoolFull
	}
	return nil
}

func TestFullSnapshot_noSpaceEvenIfSealed(t *testing.T) {
	s := newHarness(t)
	random := make([]byte, 1<<20)
	_, _ = rand.Read(random)
	for i := range 16 {
		s.put(fmt.Sprint("incompressible", i), string(random))
	}
	s.run(func(s *Writer) {
		s.pace.tick = time.Microsecond // check for space before the copy is complete
		s.snapshots.room = func(int64) error { return ErrSpoolFull }
	})
	s.eventually(func(f Facts) bool { return f.Problem != nil }, "the problem is reported")
	assert.Equal(t, "cannot copy the database: "+ErrSpoolFull.Error(), s.Facts().Problem.Message)
}

func TestChain_failedCopyLeavesNothing(t *testing.T) {
	s := newHarness(t)
	s.tune = append(s.tune, func(s *Writer) {
		s.snapshots.room = func(int64) error {
			if failures := s.Facts().Failures; failures == 1 || failures == 2 {
				return ErrSpoolFull
			}
			return nil
		}
	})
	s.store.Inject(memory.Fault{Op: memory.Put, Prefix: "gen/000001/full/", Err: memory.ErrDenied, Times: 1})
	s.run()
	for range 50 {
		s.put("a", "captured after a full snapshot that is never stored")
	}
	s.putAndFlush("a", "1")
	assert.GreaterOrEqual(t, s.Facts().Failures, int64(3))
	s.requireWhole()
	s.requireNoLooseSegments()
}

// requireNoLooseSegments requires that every segment follows the first full snapshot. A segment without a preceding
// full snapshot cannot be restored.
func (s *harness) requireNoLooseSegments() {
	s.Helper()
	history := s.history()
	for _, object := range history.Objects {
		assert.Greater(s, object.Start.Revision, history.Fulls[0].Revision, "no full snapshot precedes segment %s", object.Name())
	}
}

// A full snapshot must be stored after the segments that precede it. If the process were killed in between, other
// members would continue from the full snapshot and never upload those segments.
func TestFullSnapshot_followsEarlierSegments(t *testing.T) {
	s := newStartedHarness(t)
	s.store.Inject(memory.Fault{Op: memory.Put, Prefix: "gen/000001/segment", Hang: true, Times: 1})
	between := s.put("a", "1")
	s.put("a", "2")
	s.requestFull()
	s.eventually(func(f Facts) bool { return f.Fulls == 2 || fullWaits(f) }, "the database is copied")
	s.stop()
	s.store.ClearFaults()
	s.run()
	s.awaitStored(s.put("a", "3"))
	_, _, path := restoreTarget(t, s.store, archive.Target{Revision: between})
	assert.Equal(t, between, path.Revision)
	s.requireOneChain()
}

func TestInspection_endsAfterAChainStarted(t *testing.T) {
	s := newHarness(t)
	s.store.Inject(memory.Fault{Op: memory.Put, Prefix: "gen/000001/full/", Hang: true})
	s.run()
	s.eventually(fullUploads, "the database is copied")
	s.put("a", "after the full snapshot")
	s.eventually(func(Facts) bool { return s.queuedSegments() > 0 }, "a segment is queued")
	s.do(func() {
		s.health.requestedAt = time.Now()
		s.handleResult(inspection{storeView: s.remote.storeView}, nil) // was inspected before the chain was created
	})
	s.do(func() {
		assert.Equal(t, starting, s.core.State)
		assert.NotEmpty(t, s.spool.Entries())
	})
}

// pauseFulls blocks a member's uploads of database copies until resume is called.
func (c *cluster) pauseFulls(member int) (resume func()) {
	c.pauses[member].substr = "/data"
	return c.pauses[member].pause(false)
}

var (
	fullUploads = fullIsAt("uploading")
	fullWaits   = fullIsAt("waiting for earlier segments to be uploaded")
)

// fullIsAt returns a condition that is true during the given step of a full snapshot.
func fullIsAt(step string) func(Facts) bool {
	return func(f Facts) bool { return f.RunningFullSnapshot != nil && f.RunningFullSnapshot.Step == step }
}

// Two members start a chain at the same time. The full snapshot requested from the member that loses the race is made
// within the other member's chain.
func TestFirstFullSnapshot_requesterGetsAnother(t *testing.T) {
	c := newMembers(t, 2)
	first, second := c.members[0], c.members[1]
	c.leader.Store(0)
	resume := c.pauseFulls(0)
	first.run()
	requested := make(chan fullResult, 1)
	first.do(func() { first.snapshots.due = append(first.snapshots.due, fullRequest{"requested", requested}) })
	c.leader.Store(allLead)
	first.eventually(fullUploads, "the requested full snapshot starts a chain")
	second.run()
	second.eventually(func(f Facts) bool { return f.LastFull != nil }, "the second member has started a chain")
	c.requireEventuallyStored(c.put("a", "in the second member's chain"))
	resume()
	require.NoError(t, (<-requested).err)
	c.requireEventuallyStored(c.put("last", "value"))
	c.requireOneChain()
	assert.Equal(t, first.Facts().LastFull.Revision, c.requireAllStored().Full.Revision)
}

// Starting a chain must delete the segments of the previous chain from the spool. Otherwise, if the process is killed,
// the next process would preserve them as if they belonged to other data.
func TestChain_killDuringStartPreservesNothing(t *testing.T) {
	c := newMembers(t, 1)
	member := c.members[0]
	member.run()
	c.requireEventuallyStored(c.put("a", "possibly in the full snapshot"))
	c.requireEventuallyStored(c.put("a", "1"))
	require.NoError(t, member.Flush(t.Context()))
	require.NotEmpty(t, segmentsIn(t, member.options.SpoolDir), "the last stored segment is kept")
	c.store.Inject(memory.Fault{Op: memory.Put, Prefix: "gen/000001/full/", Hang: true})
	capturesAfter := func(interval time.Duration) {
		member.do(func() { member.Writer.options.Interval = interval })
	}
	capturesAfter(100 * patience)
	c.compact(c.put("a", "compacted before it is captured"))
	capturesAfter(member.options.Interval)
	member.eventually(fullUploads, "a full snapshot starts a chain after the gap")
	c.put("a", "2")
	member.eventually(func(Facts) bool { return member.queuedSegments() > 0 }, "a segment after it is queued")
	member.stop()
	_, err := member.make()
	require.NoError(t, err)
	assert.Empty(t, disk.PreservedCopies(member.options.SpoolDir))
	assert.NotContains(t, c.log.String(), "preserved")
}
