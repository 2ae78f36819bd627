package writer

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/store/memory"
)

func TestTimesNeverGoBackHoweverTheClockJumpsNorOverRestarts(t *testing.T) {
	s := newStand(t)
	var wall atomic.Int64
	wall.Store(1_800_000_000)
	s.options.Now = func() time.Time { return time.Unix(wall.Load(), 0) }
	s.run()
	for i, jump := range []int64{0, 10, -3600, 1, 100_000, -100_000, 5} {
		wall.Add(jump)
		s.awaitStored(s.put("a", fmt.Sprint(i)))
		if i%2 == 0 {
			s.end()
			s.run()
			s.eventually(func(f Facts) bool { return f.Role == Writing }, "it writes again")
		}
	}
	require.NoError(t, s.Flush(t.Context()))
	a := archive.New(s.store, keys)
	objects, err := a.Objects(t.Context(), 1, archive.Segment, s.chains()[0].Objects[0].Start)
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

func TestATimeFindsTheRevisionOfThatTime(t *testing.T) {
	s := begun(t)
	first := s.put("a", "1")
	s.awaitStored(first)
	between := time.Now()
	if since := s.chains()[0].Fulls[0].Since(); between.Before(since) {
		between = since // no time before that is kept
	}
	for !time.Now().After(between.Add(3 * s.pace.tick)) {
		s.eventually(func(Facts) bool { return true }, "")
	}
	second := s.put("a", "2")
	s.awaitStored(second)
	require.NoError(t, s.Flush(t.Context()))
	path, err := archive.New(s.store, keys).Find(t.Context(), archive.Target{Time: between.Add(s.pace.tick)})
	require.NoError(t, err)
	assert.Equal(t, first, path.Revision)
}

// jumped is a stand whose clock was a day ahead for a while.
func jumped(t *testing.T) (s *stand, wall *atomic.Int64) {
	t.Helper()
	s, wall = newStand(t), &atomic.Int64{}
	wall.Store(1_800_000_000)
	s.options.Now = func() time.Time { return time.Unix(wall.Load(), 0) }
	s.run()
	s.awaitStored(s.put("a", "1"))
	wall.Add(86_400)
	s.awaitStored(s.put("a", "2"))
	_, err := s.FullNow(t.Context(), "asked for")
	require.NoError(t, err)
	wall.Add(-86_400)
	s.awaitStored(s.put("a", "3"))
	return s, wall
}

func TestHowLongTheStoreIsBehindIsToldThoughAClockWasAhead(t *testing.T) {
	s, _ := jumped(t)
	s.store.Inject(memory.Fault{Op: memory.Put, Err: memory.ErrUnreachable})
	began := time.Now()
	s.put("a", "4")
	s.eventually(func(f Facts) bool { return f.BehindFor > 500*time.Millisecond }, "it is told, and grows")
	assert.LessOrEqual(t, s.Facts().BehindFor, time.Since(began))
	s.store.Heal()
	s.eventually(func(f Facts) bool { return f.BehindFor == 0 }, "it is over")
}

// Within a history nobody gets rid of the times of a clock that was ahead.
func TestAHistoryThatBeginsIsTimedByTheClockThoughItWasAhead(t *testing.T) {
	for name, begin := range map[string]func(s *stand){
		"at another place": func(s *stand) {
			s.end()
			s.store = memory.New()
			s.run()
		},
		"where the store was emptied": (*stand).empty,
	} {
		t.Run(name, func(t *testing.T) {
			s, wall := jumped(t)
			s.tune = append(s.tune, func(s *Writer) { s.pace.watch = 0 })
			first := s.Facts().LastFull.Name
			begin(s)
			s.eventually(func(f Facts) bool {
				s.put("a", "anew")
				return f.LastFull != nil && (f.LastFull.Name != first || f.Fulls == 1)
			}, "another beginning")
			s.awaitStored(s.put("a", "behind it"))
			assert.Less(t, s.Facts().LastFull.Time.Unix(), wall.Load()+60)
			assert.Less(t, s.chains()[0].End.Unix(), wall.Load()+60)
		})
	}
}

func TestHowLongTheStoreIsBehindIsCountedOnOverARestart(t *testing.T) {
	s := newStand(t)
	var ahead atomic.Int64
	s.options.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	s.run()
	s.awaitStored(s.put("a", "1"))
	s.store.Inject(memory.Fault{Op: memory.Put, Err: memory.ErrUnreachable})
	s.put("a", "2")
	s.eventually(func(Facts) bool { return s.waits() > 0 }, "it waits")
	s.end()
	ahead.Store(int64(time.Hour))
	s.run()
	s.eventually(func(f Facts) bool { return f.BehindFor > 0 }, "it is told")
	assert.InDelta(t, time.Hour, s.Facts().BehindFor, float64(patience))
	s.end()
	ahead.Store(-int64(time.Hour))
	s.run()
	s.eventually(func(f Facts) bool { return f.BehindFor > 0 }, "it is told")
	assert.Less(t, s.Facts().BehindFor, patience)
}

// setBack is what time.Now returns when the clock was set back: its monotonic reading has gone on.
func setBack(now time.Time, by time.Duration) time.Time {
	type readings struct {
		wall      uint64
		monotonic int64
	}
	back := now.Add(-by)
	(*readings)(unsafe.Pointer(&back)).monotonic = (*readings)(unsafe.Pointer(&now)).monotonic
	return back
}

func TestWhenAFullIsDueIsPlannedAgainWhenTheClockIsSetBack(t *testing.T) {
	now := time.Now()
	back := setBack(now, 24*time.Hour)
	require.False(t, back.Before(now), "which nobody sees who compares the two")
	require.Equal(t, 24*time.Hour, now.Round(0).Sub(back.Round(0)))
	s := newStand(t)
	var right atomic.Bool
	s.options.Now = func() time.Time {
		if right.Load() {
			return setBack(time.Now(), 24*time.Hour)
		}
		return time.Now()
	}
	s.options.Schedule = func(_ string, after time.Time) time.Time { return after.Truncate(time.Hour).Add(time.Hour) }
	s.run()
	s.eventually(func(f Facts) bool { return f.NextFull.After(now) }, "planned by a clock that is ahead")
	right.Store(true)
	s.eventually(func(f Facts) bool { return f.NextFull.Before(now) }, "planned again")
}
