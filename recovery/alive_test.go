package recovery

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
	"etcd-wrapper/bootstrap/datadir"
	"etcd-wrapper/recovery/peers"
)

// lost is a world whose store has a clock of its own, an hour ahead, and whose volume was lost.
func lost(t *testing.T) (w *world, clock *time.Time) {
	t.Helper()
	w, now := newWorld(t), at
	w.still, w.now = 90*time.Second, func() time.Time { return now }
	w.store.Now = func() time.Time { return now.Add(time.Hour) }
	w.used()
	require.NoError(t, os.RemoveAll(w.member.DataDir))
	return w, &now
}

func TestAGenerationThatNobodyAddedToForAWhileIsReplacedAtOnce(t *testing.T) {
	w, clock := lost(t)
	*clock = clock.Add(90 * time.Second)
	w.options.Pause = func(context.Context, int) { t.Error("there is nothing to wait for") }
	require.NoError(t, w.run())
	for object, err := range w.store.List(t.Context(), "probe/", "") {
		require.NoError(t, err)
		t.Error("looking at the store's clock leaves ", object.Name)
	}
}

func TestAStoreFromWhichNothingMayBeRemovedShowsItsClockAllTheSame(t *testing.T) {
	w, clock := lost(t)
	*clock = clock.Add(90 * time.Second)
	w.store.Inject(memory.Fault{Op: memory.Delete, Err: memory.ErrDenied})
	w.options.Pause = func(context.Context, int) { t.Error("there is nothing to wait for") }
	require.NoError(t, w.run())
}

func TestAGenerationIsNotReplacedBeforeItWasSilentForAWhile(t *testing.T) {
	w, clock := lost(t)
	began := *clock
	w.options.Pause = func(ctx context.Context, _ int) {
		until, bounded := ctx.Deadline()
		assert.True(t, bounded && time.Until(until) <= w.still, "it waits no longer than it must")
		*clock = clock.Add(20 * time.Second)
	}
	require.NoError(t, w.run())
	assert.Equal(t, 100*time.Second, clock.Sub(began))
	assert.Contains(t, w.log.String(), "by cluster ")
	assert.Contains(t, w.log.String(), "nothing takes its place before "+began.Add(90*time.Second).UTC().Format(time.TimeOnly))
}

// An empty volume with the configuration of a cluster that lives somewhere else, and writes its backups.
func TestAClusterThatLivesIsNotReplacedByItsBackups(t *testing.T) {
	w := usedWorld(t)
	living := newWorld(t)
	living.archive = w.archive
	require.NoError(t, os.Rename(w.member.DataDir, living.member.DataDir))
	clock, pauses, builds := at, 0, 0
	w.still, w.now = 90*time.Second, func() time.Time { return clock }
	w.store.Now = w.now
	writes := func(key string) {
		living.put(key)
		living.backUp(1)
	}
	writes("by now")
	w.options.Pause = func(context.Context, int) {
		if pauses++; pauses <= 3 {
			writes(fmt.Sprint("in pause ", pauses))
		}
		clock = clock.Add(30 * time.Second)
	}
	require.NoError(t, w.runWith(func(action Action) error {
		switch action {
		case BuildData:
			builds++
		case ClaimGeneration:
			if builds == 1 {
				writes("while it is built")
			}
		}
		return nil
	}))
	assert.Equal(t, 2, builds)
	assert.Equal(t, 3+2+3, pauses, "it has been silent for long enough, twice")
	keys, _ := w.keys()
	assert.Contains(t, keys, "while it is built")
}

// A member that moves here from a sidecar names no cluster, and the others, who have moved before it, never stop to make backups.
func TestAMemberOfSeveralStartsBesideThoseThatMakeTheBackups(t *testing.T) {
	w, o := ofThree(t)
	o.id, o.of = ours, 1
	require.NoError(t, os.Remove(filepath.Join(w.member.DataDir, archive.IdentityFile)))
	w.copyVolume()
	w.put("while it was down")
	w.backUp(1)
	w.rollBack()
	w.still = time.Hour
	w.options.Pause = func(context.Context, int) { require.FailNow(t, "there is nothing to wait for", w.log.String()) }
	start, err := w.start(nil)
	require.NoError(t, err)
	assert.Empty(t, start)
	assert.Empty(t, w.asides())
}

// All go back together, and one of the others was first: what it has restored lives, and takes this one in.
func TestAMemberThatDidNotRestoreItselfJoinsTheOneThatDid(t *testing.T) {
	w, o := ofThree(t)
	require.NoError(t, w.archive.BeginGeneration(t.Context(), archive.Generation{
		Number: 2, Cluster: ours, Owner: "etcd-cluster", Etcd: "beef", Parent: 1, ParentRevision: 2, Restore: "drop", Created: at,
	}))
	w.putFull(ours, 2)
	o.listing, o.cluster, w.still = peers.Unlisted, 0xbeef, time.Hour
	w.options.Request = &Request{Target: archive.Target{Revision: 2}, ID: "drop"}
	w.options.Pause = func(context.Context, int) { require.FailNow(t, "there is nothing to wait for", w.log.String()) }
	w.requireTakenIn()
	assert.Len(t, w.asides(), 1)
}

// forAMinute has the clock stand still but for pauses, and ends a run that goes on for a minute.
func (w *world) forAMinute() (ctx context.Context, began time.Time) {
	w.t.Helper()
	began = w.ticks(2 * time.Second)
	ctx, cancel := context.WithCancel(w.t.Context())
	w.t.Cleanup(cancel)
	pause := w.options.Pause
	w.options.Pause = func(ctx context.Context, times int) {
		if pause(ctx, times); w.now().Sub(began) >= time.Minute {
			cancel()
		}
	}
	return ctx, began
}

// It was compared a moment before, and the store has more.
func TestAVolumeThatIsBehindIsNotServedBecauseTheStoreGoesAwayAfterItHasAnswered(t *testing.T) {
	for name, c := range map[string]struct {
		still time.Duration
		away  func(w *world) memory.Fault
	}{
		"while it is asked whether somebody writes": {time.Nanosecond, func(w *world) memory.Fault {
			return memory.Fault{Op: memory.List, Prefix: w.manifest(), Err: store.ErrUnavailable}
		}},
		"while somebody may write": {90 * time.Second, func(*world) memory.Fault { return memory.Fault{Err: store.ErrUnavailable} }},
	} {
		t.Run(name, func(t *testing.T) {
			w := usedWorld(t)
			w.goesOn()
			w.still = c.still
			ctx, _ := w.forAMinute()
			away := sync.OnceFunc(func() { w.store.Inject(c.away(w)) })
			if c.still < time.Second {
				away()
			}
			pause := w.options.Pause
			w.options.Pause = func(ctx context.Context, times int) {
				away()
				pause(ctx, times)
			}
			_, err := w.startWithin(ctx, nil)
			require.ErrorIs(t, err, context.Canceled)
			assert.Empty(t, w.asides())

			w.store.Heal()
			w.options.Pause, w.still = func(context.Context, int) {}, time.Nanosecond
			require.NoError(t, w.run())
			w.requireKeys("a", "key")
			assert.Len(t, w.asides(), 1)
		})
	}
}

// Whose clock cannot be read does not say whether somebody writes there. The data lack nothing, and would be served without a store.
func TestDataThatLackNothingWaitNoLongerForAStoreWhoseClockCannotBeRead(t *testing.T) {
	w := usedWorld(t)
	w.still, w.options.Owner = time.Hour, func(string) string { return "of another name by now" }
	w.store.Inject(memory.Fault{Op: memory.Put, Prefix: "probe/", Err: store.ErrDenied})
	ctx, began := w.forAMinute()
	start, err := w.startWithin(ctx, nil)
	require.NoError(t, err)
	assert.Empty(t, start)
	assert.Equal(t, comparing, w.now().Sub(began))
}

// Its clock is no reason to wait for ever.
func TestAGenerationFromTheFutureIsSilentFromTheFirstLookOn(t *testing.T) {
	w, clock := lost(t)
	began := *clock
	*clock = clock.Add(-24 * time.Hour)
	w.options.Pause = func(context.Context, int) { *clock = clock.Add(30 * time.Second) }
	require.NoError(t, w.run())
	assert.Equal(t, began.Add(-24*time.Hour+90*time.Second), *clock)
}

func TestAGenerationThatItsWriterReleasedIsReplacedAtOnce(t *testing.T) {
	w, _ := lost(t)
	w.endsWith(format.Source{Released: true})
	w.options.Pause = func(context.Context, int) { t.Error("there is nothing to wait for") }
	require.NoError(t, w.run())
}

// What the volume itself has brought into the store is no sign that its cluster lives.
func TestGoingBackBringsWhatTheVolumeHasAndBuildsOnce(t *testing.T) {
	for name, of := range map[string]struct {
		target archive.Target
		keys   []string
	}{
		"to a revision": {archive.Target{Revision: 2}, []string{"key"}},
		"to the latest": {archive.Target{}, []string{"key", "only on the volume"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := usedWorld(t)
			w.put("only on the volume")
			w.still = time.Hour
			w.options.Flush = func(context.Context, string, datadir.Position) error { w.backUp(1); return nil }
			w.options.Request = &Request{Target: of.target, ID: "drop"}
			w.options.Pause = func(context.Context, int) { t.Error("there is nothing to wait for") }
			builds := 0
			require.NoError(t, w.runWith(func(action Action) error {
				if action == BuildData {
					builds++
				}
				return nil
			}))
			assert.Equal(t, 1, builds)
			keys, _ := w.keys()
			assert.Equal(t, of.keys, keys)
		})
	}
}

// It went on serving after its backups had gone on without it, and is started again.
func TestWhatAClusterHadAfterItWasReplacedIsToldInNumbers(t *testing.T) {
	w := usedWorld(t)
	living := filepath.Join(t.TempDir(), "living")
	require.NoError(t, os.Rename(w.member.DataDir, living))
	require.NoError(t, w.run())
	w.put("of generation 2")
	w.backUp(2)
	w.older = living
	w.rollBack()
	w.put("1", "2", "3")
	w.log.Reset()
	require.NoError(t, w.run())
	assert.Contains(t, w.log.String(), "; 3 revisions are lost, which generation 1 got after revision 2, from which generation 2 was restored")
	assert.Len(t, w.asides(), 1)
}

// awaitsSilence has a generation be replaced that was silent for 90 s, and counts the pauses until then, of 31 s each.
func (w *world) awaitsSilence() (waited *int) {
	clock := time.Now()
	w.still, w.now, waited = 90*time.Second, func() time.Time { return clock }, new(int)
	w.store.Now = w.now
	w.options.Pause = func(context.Context, int) { *waited++; clock = clock.Add(31 * time.Second) }
	return waited
}

// endsWith adds the end of a session to generation 1.
func (w *world) endsWith(source format.Source) {
	w.t.Helper()
	head, err := w.archive.Head(w.t.Context(), 1)
	require.NoError(w.t, err)
	builder, err := format.NewSegmentBuilder(w.archive.Keys(), head.Start)
	require.NoError(w.t, err)
	object, err := builder.Finish(source)
	require.NoError(w.t, err)
	require.NoError(w.t, w.archive.PutStored(w.t.Context(), 1, object.Position, object.Reader()))
}

// Nobody else can be alive who wrote these backups: it was a process on this very volume.
func TestABrokenVolumeOfTheWriterItselfIsReplacedAtOnce(t *testing.T) {
	for session, pauses := range map[string]int{"this": 0, "another": 3} {
		t.Run(session, func(t *testing.T) {
			w := usedWorld(t)
			w.endsWith(format.Source{Session: session})
			require.NoError(t, archive.Identity{Cluster: ours, Generation: 1, Session: "this"}.Write(w.member.DataDir))
			w.spoil()
			waited := w.awaitsSilence()
			require.NoError(t, w.run())
			assert.Equal(t, pauses, *waited)
			assert.Len(t, w.generations(), 2)
		})
	}
}

// A copy of a volume, as from a snapshot of it, names the session of the process that still runs on the volume itself. What that session
// has stored etcd had on its disk before, so data that lack it are a copy of theirs, or older ones.
func TestACopyOfTheVolumeOfAWriterThatLivesWaitsForIt(t *testing.T) {
	w := usedWorld(t)
	require.NoError(t, archive.Identity{Cluster: ours, Generation: 1, Session: "this"}.Write(w.member.DataDir))
	w.copyVolume()
	w.put("after the copy")
	w.backUp(1)
	w.endsWith(format.Source{Session: "this"})
	w.rollBack()
	waited := w.awaitsSilence()
	require.NoError(t, w.run())
	assert.Equal(t, 3, *waited)
	keys, _ := w.keys()
	assert.Contains(t, keys, "after the copy")
}

// A copy that lacks nothing may run in another namespace: it waits while the store's owner writes. Once that is silent, it is the same
// cluster with a new name.
func TestDataOfAnotherNameWaitForTheOwnerOfTheStore(t *testing.T) {
	w := usedWorld(t)
	w.options.Owner = func(token string) string { return "second/" + token }
	waited := w.awaitsSilence()
	require.NoError(t, w.run())
	assert.Equal(t, 3, *waited)
	assert.Empty(t, w.asides())
	assert.Len(t, w.generations(), 1)
}

func TestAPersonsWordReplacesAGenerationAtOnce(t *testing.T) {
	w, _ := lost(t)
	w.options.Adopt = ours
	w.options.Pause = func(context.Context, int) { t.Error("there is nothing to wait for") }
	require.NoError(t, w.run())
	assert.NotEmpty(t, w.generations()[1].Adopted, "and it is used up")
}
