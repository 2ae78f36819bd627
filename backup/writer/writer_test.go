package writer

import (
	"cmp"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/server/v3/storage/backend"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/facts"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store/memory"
	"etcd-wrapper/cmd/suites/etcdtest"
)

func TestWrites_areUploadedAndReadable(t *testing.T) {
	s := newHarness(t)
	s.put("before", "the first full snapshot")
	s.run()
	s.eventually(func(f Facts) bool { return f.LastFull != nil }, "a full snapshot is made")
	for i := range 100 {
		s.put(fmt.Sprint("key", i%10), fmt.Sprint(i))
	}
	last := s.put("last", "1")
	s.awaitStored(last)

	path := s.requireAllStored()
	assert.Equal(t, last, path.Revision)
	assert.Equal(t, "there is no full snapshot yet", path.Full.Reason)
	require.NotNil(t, path.Full.Hash, "the hash of a small database is recorded")
	s.requireOneChain()
	assert.Equal(t, facts.Writer, s.Facts().Role)
	assert.Equal(t, 1, s.Facts().Generation)
	assert.Nil(t, s.Facts().Problem)
	s.awaitNoTransaction()
}

func TestIdle_uploadsNothing(t *testing.T) {
	s := newStartedHarness(t)
	assert.Zero(t, s.Facts().SpoolBytes)
	assert.Zero(t, s.Facts().LagRevisions)
	assert.Less(t, s.Facts().Lag, time.Second, "only etcd's internal bookkeeping may be unstored")
	before := s.Facts().Segments
	_, err := s.etcd.Client.Get(t.Context(), "a")
	require.NoError(t, err)
	require.NoError(t, s.Flush(t.Context()), "Flush captures all pending changes")
	assert.Equal(t, before, s.Facts().Segments)
}

func TestLeasesAndUsers_areUploadedWithoutNewRevision(t *testing.T) {
	s := newStartedHarness(t) // the full snapshot is already stored, so the lease and the user can only be in segments
	lease, err := s.etcd.Client.Grant(t.Context(), 3600)
	require.NoError(t, err)
	s.addUser("someone")
	require.NoError(t, s.Flush(t.Context()))
	_, reading, _ := restoreTarget(t, s.store, archive.Target{})
	found := map[string]int{}
	for _, bucket := range reading.Buckets {
		found[bucket.Name] = bucket.Len()
	}
	assert.Equal(t, 1, found["lease"], "lease %x", lease.ID)
	assert.Equal(t, 1, found["authUsers"])
}

func TestFlush_includesUnappliedWrites(t *testing.T) {
	s := newHarness(t)
	etcd := s.options.Etcd
	// If frozen is set, etcd reports this applied index, as if it had replied to clients before updating the index.
	var frozen atomic.Uint64
	s.options.Etcd = &fakeEtcd{Etcd: etcd, applied: func() uint64 { return cmp.Or(frozen.Load(), etcd.AppliedIndex()) }}
	s.run()
	s.putAndFlush("first", "value")
	frozen.Store(etcd.AppliedIndex())
	require.NoError(t, s.Flush(t.Context()), "Flush captures everything up to the frozen applied index")
	s.addUser("someone")
	require.NoError(t, s.Flush(t.Context()))
	s.requireUsers(1)
}

func TestCompaction_waitsForASlowCapture(t *testing.T) {
	s := newHarness(t)
	etcd := s.options.Etcd
	var busy sync.Mutex // blocks reads of the database
	s.options.Etcd = &fakeEtcd{Etcd: etcd, backend: func() backend.Backend { busy.Lock(); defer busy.Unlock(); return etcd.Backend() }}
	s.run()
	s.awaitStored(s.put("a", "1"))
	busy.Lock()
	s.put("a", "2")
	last := s.put("a", "3")
	var captured atomic.Bool
	go func() { s.BeforeCompaction(t.Context()); captured.Store(true) }()
	assert.Never(t, captured.Load, 300*time.Millisecond, poll, "BeforeCompaction waits for the capture")
	busy.Unlock()
	require.Eventually(t, captured.Load, patience, poll)
	s.compact(last)
	s.putAndFlush("a", "4")
	s.requireOneChain()
}

func TestTimes_neverDecrease(t *testing.T) {
	s := newHarness(t)
	wall := s.clock(1_800_000_000)
	s.run()
	for i, jump := range []int64{0, 10, -3600, 1, 100_000, -100_000, 5} {
		wall.Add(jump)
		s.awaitStored(s.put("a", fmt.Sprint(i)))
		if i%2 == 0 {
			s.stop()
			s.run()
			s.eventually(func(f Facts) bool { return f.Role == facts.Writer }, "the member is the writer again")
		}
	}
	require.NoError(t, s.Flush(t.Context()))
	a := s.backups()
	objects, err := a.Objects(t.Context(), 1, archive.Segment)
	require.NoError(t, err)
	var last time.Time
	for _, object := range objects {
		manifest, err := a.Manifest(t.Context(), 1, object.Start)
		require.NoError(t, err)
		assert.False(t, manifest.From.Before(last), "%s after %s", manifest.From, last)
		assert.False(t, manifest.To.Before(manifest.From))
		last = manifest.To
	}
	assert.EqualValues(t, 1_800_000_000+10-3600+1+100_000, last.Unix())
}

func TestTimes_identifyARevision(t *testing.T) {
	s := newStartedHarness(t)
	first := s.put("a", "1")
	s.awaitStored(first)
	between := time.Now()
	if since := s.history().Chains[0].Fulls[0].ValidFrom(); between.Before(since) {
		between = since // times before the first full snapshot cannot be restored
	}
	for !time.Now().After(between.Add(3 * s.pace.tick)) {
		s.eventually(func(Facts) bool { return true }, "")
	}
	second := s.put("a", "2")
	s.awaitStored(second)
	require.NoError(t, s.Flush(t.Context()))
	path, err := s.backups().Find(t.Context(), archive.Target{Time: between.Add(s.pace.tick)})
	require.NoError(t, err)
	assert.Equal(t, first, path.Revision)
}

// jumped returns a harness whose clock was one day ahead for a while.
func jumped(t *testing.T) (s *harness, wall *atomic.Int64) {
	t.Helper()
	s = newHarness(t)
	wall = s.clock(1_800_000_000)
	s.run()
	s.awaitStored(s.put("a", "1"))
	wall.Add(86_400)
	s.awaitStored(s.put("a", "2"))
	s.full()
	wall.Add(-86_400)
	s.putAndFlush("a", "3") // Flush also uploads changes made by etcd itself
	return s, wall
}

func TestLag_clockWasAhead(t *testing.T) {
	s, _ := jumped(t)
	start := time.Now()
	s.store.Inject(memory.Fault{Op: memory.Put, Err: memory.ErrUnreachable})
	s.put("a", "4")
	s.eventually(func(f Facts) bool { return f.Lag > 500*time.Millisecond && f.LagSeconds == f.Lag.Seconds() }, "the lag grows")
	assert.LessOrEqual(t, s.Facts().Lag, time.Since(start))
	s.store.ClearFaults()
	s.eventually(func(f Facts) bool { return f.Lag == 0 }, "the lag returns to zero")
}

// A new history starts at the current time, even if the previous history has later times because a clock was ahead.
func TestTimes_newHistoryUsesTheClock(t *testing.T) {
	for name, reset := range map[string]func(s *harness){
		"in a new store": func(s *harness) {
			s.stop()
			s.store = memory.New()
			s.run()
		},
		"in an emptied store": func(s *harness) {
			s.emptyStore()
			s.check()
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, wall := jumped(t)
			first := s.Facts().LastFull.Name()
			reset(s)
			s.eventually(func(f Facts) bool {
				s.put("a", "next")
				return f.LastFull != nil && (f.LastFull.Name() != first || f.Fulls == 1)
			}, "a new chain is started")
			s.awaitStored(s.put("a", "in the new chain"))
			assert.Less(t, s.Facts().LastFull.Time.Unix(), wall.Load()+60)
			assert.Less(t, s.history().Chains[0].End.Unix(), wall.Load()+60)
		})
	}
}

func TestLag_survivesARestart(t *testing.T) {
	s := newHarness(t)
	var clockOffset atomic.Int64
	s.options.Now = func() time.Time { return time.Now().Add(time.Duration(clockOffset.Load())) }
	s.run()
	s.awaitStored(s.put("a", "1"))
	s.store.Inject(memory.Fault{Op: memory.Put, Err: memory.ErrUnreachable})
	s.put("a", "2")
	s.eventually(func(Facts) bool { return s.queuedSegments() > 0 }, "a segment is queued")
	for offset, lag := range map[time.Duration]time.Duration{time.Hour: time.Hour, -time.Hour: 0} {
		s.stop()
		clockOffset.Store(int64(offset))
		s.run()
		s.eventually(func(f Facts) bool { return f.Lag > 0 }, "the lag is reported")
		assert.InDelta(t, lag, s.Facts().Lag, float64(patience))
	}
}

// setBack returns what time.Now would return if the wall clock had been set back: an earlier wall time with the same
// monotonic reading.
func setBack(now time.Time, by time.Duration) time.Time {
	type readings struct {
		wall      uint64
		monotonic int64
	}
	back := now.Add(-by)
	(*readings)(unsafe.Pointer(&back)).monotonic = (*readings)(unsafe.Pointer(&now)).monotonic
	return back
}

func TestFullSnapshot_scheduleAfterClockReset(t *testing.T) {
	now := time.Now()
	back := setBack(now, 24*time.Hour)
	require.False(t, back.Before(now), "the monotonic readings are equal")
	require.Equal(t, 24*time.Hour, now.Round(0).Sub(back.Round(0)))
	s := newHarness(t)
	var corrected atomic.Bool
	s.options.Now = func() time.Time {
		if corrected.Load() {
			return setBack(time.Now(), 24*time.Hour)
		}
		return time.Now()
	}
	s.options.Schedule = hourly
	s.run()
	s.eventually(func(f Facts) bool { return f.NextFullSnapshot.After(now) }, "scheduled with a clock that is ahead")
	corrected.Store(true)
	s.eventually(func(f Facts) bool { return f.NextFullSnapshot.Before(now) }, "rescheduled with the correct clock")
}

// BenchmarkSecond captures 10,000 rows of 1 KB, about one second of heavy load, and spools them as segments. A result
// of 0.1 s per operation means that backups of such a load use a tenth of a CPU core.
func BenchmarkSecond(b *testing.B) {
	etcd := etcdtest.Start(b, b.TempDir())
	etcd.Fill(b)
	writer, err := New(Options{
		Archive: archive.New(memory.New(), keys), Etcd: Server(etcd.Server), Schedule: never, SpoolDir: filepath.Join(b.TempDir(), "spool"), SpoolLimit: 1 << 40,
		DataDir: b.TempDir(), Session: archive.NewID(), Log: zerolog.Nop(), Now: time.Now,
	})
	require.NoError(b, err)
	writer.core.Facts.leads = true
	b.ReportAllocs()
	for b.Loop() {
		writer.chain.tail = &format.Start{Cluster: "c", Generation: 1, Position: format.After(1), Before: format.Seed("c", 1, 1)}
		writer.chain.revision = etcd.Revision()
		for again := true; again; {
			again, err = writer.chain.captureUpTo(writer.chain.revision, true, false)
			require.NoError(b, err)
		}
		require.Greater(b, writer.chain.tail.Position.Revision, writer.chain.revision)
		require.NoError(b, writer.spool.Clear())
	}
}
