package writer

import (
	"context"
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
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
)

func TestAFullInTheMiddleBelongsToTheChain(t *testing.T) {
	s := begun(t)
	for round := range 3 {
		last := s.put("a", fmt.Sprint(round))
		done, err := s.FullNow(t.Context(), "asked for")
		require.NoError(t, err)
		assert.GreaterOrEqual(t, done.Revision, last)
		assert.Equal(t, "asked for", done.Reason)
		assert.Positive(t, done.Held)
	}
	s.awaitStored(s.put("a", "last"))
	require.NoError(t, s.Flush(t.Context()))
	s.requireChains(1)
	chain := s.chains()[0]
	require.Len(t, chain.Fulls, 4)
	assert.False(t, chain.Fulls[3].BeginsChain())
	assert.Equal(t, chain.Fulls[3].Revision, s.requireAllKept().Full.Revision)
	_, _, path := kept(t, s.store, archive.Target{Revision: chain.Fulls[1].Revision - 1})
	assert.Equal(t, chain.Fulls[0].Revision, path.Full.Revision)
}

// An idle cluster pays for no copy of what is in the store already, but for one a day.
func TestAFullOfADatabaseThatHasNotChangedIsMadeOnceADay(t *testing.T) {
	s := newStand(t)
	var wall atomic.Int64
	wall.Store(time.Date(2026, 1, 1, 0, 30, 0, 0, time.UTC).Unix())
	s.options.Now = func() time.Time { return time.Unix(wall.Load(), 0) }
	s.options.Schedule = func(_ string, after time.Time) time.Time { return after.Truncate(time.Hour).Add(time.Hour) }
	require.Eventually(t, func() bool {
		is := s.etcd.Server.StorageVersion() // 3.5 for some seconds, as etcd itself writes what 3.6 has more
		return is != nil && is.Equal(version.V3_6)
	}, patience, poll, "etcd itself writes nothing more")
	s.run()
	isDone := func(fulls int64, what string) {
		s.Helper()
		s.eventually(func(f Facts) bool { return f.NextFull.Unix() > wall.Load() }, "its time has come")
		s.eventually(func(f Facts) bool { return f.Fulls == fulls }, what)
		require.NoError(t, s.Flush(t.Context()), "it is seen that nothing came behind it") // before the next hour, which is not 3,600 s off
	}
	isDone(1, "the first")
	for range 22 {
		wall.Add(3600)
		isDone(1, "nothing has changed")
	}
	wall.Add(3600)
	isDone(2, "it is a day old")
	wall.Add(3600)
	isDone(2, "nothing has changed")
	s.awaitStored(s.put("a", "1"))
	wall.Add(3600)
	isDone(3, "a key has")
	s.addUser("somebody")
	require.NoError(t, s.Flush(t.Context()))
	wall.Add(3600)
	isDone(4, "a user has")
}

func TestFullsAreMadeByScheduleAndWhenOneWasMissed(t *testing.T) {
	s := newStand(t)
	var wall atomic.Int64
	wall.Store(time.Date(2026, 1, 1, 0, 30, 0, 0, time.UTC).Unix())
	s.options.Now = func() time.Time { return time.Unix(wall.Load(), 0) }
	s.options.Schedule = func(_ string, after time.Time) time.Time { return after.Truncate(time.Hour).Add(time.Hour) }
	s.run()
	s.eventually(func(f Facts) bool { return f.Fulls == 1 && f.NextFull.Minute() == 0 }, "the first")
	s.awaitStored(s.put("a", "1"))
	wall.Add(1800)
	s.eventually(func(f Facts) bool { return f.Fulls == 2 }, "the one by schedule")
	assert.Equal(t, "schedule", s.Facts().LastFull.Reason)
	s.awaitStored(s.put("a", "2"))
	s.end()
	wall.Add(5 * 3600)
	s.run()
	s.eventually(func(f Facts) bool { return f.Fulls == 1 }, "one for all that were missed")
	assert.Equal(t, wall.Load()+3600, s.Facts().NextFull.Unix())
	s.requireChains(1)
}

func TestFullsOfOneRevisionWithinASecondHaveNamesOfTheirOwn(t *testing.T) {
	s := begun(t)
	first, err := s.FullNow(t.Context(), "asked for")
	require.NoError(t, err)
	second, err := s.FullNow(t.Context(), "asked for")
	require.NoError(t, err)
	assert.NotEqual(t, first.Name, second.Name)
	assert.Zero(t, s.Facts().Failures)
	s.requireChains(1)
}

func TestAFullThatCannotBeStoredIsTriedAgainFromItsCopy(t *testing.T) {
	s := begun(t)
	copies := func() int { return strings.Count(s.log.String(), "the database was copied") }
	before := copies()
	s.store.Inject(memory.Fault{Op: memory.Put, Prefix: "gen/000001/full/", Err: memory.ErrUnreachable, Times: 2})
	_, err := s.FullNow(t.Context(), "asked for")
	require.NoError(t, err)
	assert.EqualValues(t, 2, s.Facts().Failures)
	assert.Equal(t, before+1, copies())
	s.requireChains(1)
}

func TestAManifestThatCannotBeStoredIsPutAgainForTheDataThatAreThere(t *testing.T) {
	for how, room := range map[string]error{"as it is": nil, "sealed": ErrSpoolFull} {
		t.Run(how, func(t *testing.T) {
			s := newStand(t)
			s.tune = append(s.tune, func(s *Writer) {
				s.room = func(size int64) error {
					if size != most && size >= 16<<10 { // no segment's, but the database's
						return room
					}
					return nil
				}
			})
			s.run()
			s.awaitStored(s.put("a", "1"))
			s.store.Inject(memory.Fault{Op: memory.Put, Prefix: "gen/000001/full/", After: 1, Err: memory.ErrUnreachable, Times: 2})
			done, err := s.FullNow(t.Context(), "asked for")
			require.NoError(t, err)
			assert.EqualValues(t, 2, s.Facts().Failures)
			history, err := archive.New(s.store, keys).History(t.Context())
			require.NoError(t, err)
			assert.Len(t, history.Newest().Fulls, 2)
			assert.Equal(t, done.Name, history.Newest().Fulls[1].Label)
			assert.Empty(t, history.Newest().Orphans, "the data were put once")
			s.requireAllKept()
		})
	}
}

// The longer it took in vain, the longer it is left alone, but for minutes at most.
func TestAFullThatFailedIsLeftAloneForAMultipleOfWhatItTook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Writer{options: Options{Now: time.Now}}
		f := &full{}
		assert.Equal(t, time.Second, s.rest(f, time.Second), "it was not even begun")
		s.trouble(aboutFull)
		f.tried = time.Now()
		assert.Equal(t, time.Second, s.rest(f, time.Second), "only a manifest failed")
		f.tried = time.Now().Add(-10 * time.Second)
		assert.Equal(t, 100*time.Second, s.rest(f, time.Second))
		assert.Equal(t, time.Now().Add(100*time.Second), s.troubles[aboutFull].next)
		f.tried = time.Now().Add(-time.Hour)
		assert.Equal(t, latestRetry, s.rest(f, time.Second))
		assert.Equal(t, time.Hour, s.rest(f, time.Hour), "as the store asks")
		s.flushes = append(s.flushes, flush{})
		assert.Equal(t, time.Second, s.rest(f, time.Second), "there may be no later")
	})
}

// guarded makes every request wait until no read transaction of etcd's is open, and fails the test if one waits for it.
type guarded struct {
	store.Store
	t      *testing.T
	writer func() *Writer
	full   atomic.Int32 // requests of fulls
	others atomic.Int32
}

func (g *guarded) Put(ctx context.Context, name string, content io.Reader) error {
	if strings.Contains(name, "/full/") {
		g.full.Add(1)
	} else {
		g.others.Add(1)
	}
	// A capture may be at work beside the request; none may wait for it.
	assert.Eventually(g.t, func() bool { return g.writer().reader.Open() == 0 }, patience, poll, name)
	return g.Store.Put(ctx, name, content)
}

func TestNoReadTransactionIsOpenWhileTheStoreIsWaitedFor(t *testing.T) {
	s := newStand(t)
	g := &guarded{Store: s.store, t: t, writer: func() *Writer { return s.Writer }}
	s.options.Open = func(context.Context) (*archive.Archive, error) { return archive.New(g, keys), nil }
	s.options.Interval = 0
	s.run()
	for i := range 10 {
		for range 20 {
			s.put("a", fmt.Sprint(i))
		}
		s.awaitStored(s.etcd.Revision())
		_, err := s.FullNow(t.Context(), "asked for")
		require.NoError(t, err)
	}
	assert.EqualValues(t, 22, g.full.Load())
	assert.Greater(t, g.others.Load(), int32(10))
}

func TestAStoreThatHangsKeepsNoTransactionOfAFullOpen(t *testing.T) {
	s := begun(t)
	s.store.Inject(memory.Fault{Op: memory.Put, Prefix: "gen/000001/full/", Hang: true})
	go func() { _, _ = s.FullNow(t.Context(), "asked for") }()
	s.eventually(func(f Facts) bool { return f.FullRunning != nil && f.FullRunning.Doing == "stores the copy" }, "it is copied")
	s.closesTransactions()
	require.NoError(t, s.etcd.Server.Backend().Defrag(), "which waits for every open transaction")
	s.awaitStored(s.put("a", "segments go on"))
}

func TestAFullOfAnIdleEtcdIsMadeThoughNothingWasStoredForLong(t *testing.T) {
	s := newStand(t)
	s.tune = append(s.tune, func(s *Writer) { s.pace.knows = 50 * time.Millisecond })
	s.run()
	s.awaitStored(s.put("a", "1"))
	require.NoError(t, s.Flush(t.Context()))
	stored := time.Now()
	s.eventually(func(Facts) bool { return time.Since(stored) > 2*s.pace.knows }, "what is known is old")
	_, err := s.FullNow(t.Context(), "asked for")
	require.NoError(t, err)
	s.awaitStored(s.put("a", "2"))
	s.requireChains(1)
}
