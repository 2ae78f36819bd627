package recovery

import (
	"context"
	"fmt"
	"os"
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
)

// lostVolume returns a world with a lost volume and a store whose clock is an hour ahead.
func lostVolume(t *testing.T) (w *world, clock *time.Time) {
	t.Helper()
	w, now := newWorld(t), at
	w.still, w.now = 90*time.Second, func() time.Time { return now }
	w.store.Now = func() time.Time { return now.Add(time.Hour) }
	w.fill()
	w.lose()
	return w, &now
}

func TestRestoreStartsAtOnceIfNoWriterCanRun(t *testing.T) {
	const locked = "nobody has added to it for a while, and nothing may be removed"
	for name, action := range map[string]func(w *world, clock *time.Time){
		"no uploads for a while": func(_ *world, clock *time.Time) { *clock = clock.Add(90 * time.Second) },
		locked: func(w *world, clock *time.Time) {
			*clock = clock.Add(90 * time.Second)
			w.store.Inject(memory.Fault{Op: memory.Delete, Err: memory.ErrDenied})
		},
		"its writer has released it": func(w *world, _ *time.Time) { w.endSession(format.Source{Released: true}) },
		"a person says so":           func(w *world, _ *time.Time) { w.options.Adopt = ours },
	} {
		t.Run(name, func(t *testing.T) {
			w, clock := lostVolume(t)
			action(w, clock)
			w.forbidPauses()
			require.NoError(t, w.run())
			assert.Equal(t, w.options.Adopt != "", w.generations()[1].Adopted != nil, "and the word is used up")
			assert.Equal(t, name == locked, w.objects("probe/") != nil, "looking at the store's clock leaves nothing")
		})
	}
}

func TestRestoreWaitsUntilTheGenerationIsIdle(t *testing.T) {
	w, clock := lostVolume(t)
	start := *clock
	w.wait = func(ctx context.Context, _ int) {
		until, bounded := ctx.Deadline()
		assert.True(t, bounded && time.Until(until) <= w.still, "it waits no longer than it must")
		*clock = clock.Add(20 * time.Second)
	}
	require.NoError(t, w.run())
	assert.Equal(t, 100*time.Second, clock.Sub(start))
	assert.Contains(t, w.log.String(), "a member of this member's own cluster "+ours+" extended generation 1 of ")
	assert.Contains(t, w.log.String(), "a restore can start at "+start.Add(90*time.Second).UTC().Format(time.TimeOnly)+" unless it is extended again")
}

// The run has finished waiting for another writer, and the store is now unreachable.
func TestPausesAfterAWaitForAWriter(t *testing.T) {
	w, clock := lostVolume(t)
	pauses := 0
	w.wait = func(ctx context.Context, _ int) {
		switch pauses++; pauses {
		case 1:
			*clock = clock.Add(91 * time.Second)
			w.store.Inject(memory.Fault{Op: memory.Any, Times: 3, Err: memory.ErrUnreachable})
		default:
			assert.NoError(t, ctx.Err(), "pause %d", pauses)
		}
	}
	require.NoError(t, w.run())
	assert.Greater(t, pauses, 1)
}

// An empty volume uses the configuration of a cluster that runs elsewhere and writes its backups.
func TestRunningClusterIsNotReplaced(t *testing.T) {
	w := newFilledWorld(t)
	living := newWorld(t)
	living.archive = w.archive
	require.NoError(t, os.Rename(w.member.DataDir, living.member.DataDir))
	clock, pauses, builds := at, 0, 0
	w.still, w.now = 90*time.Second, func() time.Time { return clock }
	w.store.Now = w.now
	writes := func(key string) {
		living.put(key)
		living.backUp()
	}
	writes("by now")
	w.wait = func(context.Context, int) {
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
	w.requireKeys("by now", "in pause 1", "in pause 2", "in pause 3", "key", "while it is built")
}

// forAMinute makes the clock advance only in pauses, and ends the run after a minute.
func (w *world) forAMinute() (ctx context.Context, began time.Time) {
	w.t.Helper()
	began = w.setClock(2 * time.Second)
	ctx, cancel := context.WithCancel(w.t.Context())
	w.t.Cleanup(cancel)
	pause := w.wait
	w.wait = func(ctx context.Context, times int) {
		if pause(ctx, times); w.now().Sub(began) >= time.Minute {
			cancel()
		}
	}
	return ctx, began
}

// The store has already shown that it has newer data.
func TestVolumeBehindIsNotServedWhenTheStoreBecomesUnreachable(t *testing.T) {
	for name, c := range map[string]struct {
		still time.Duration
		away  func(w *world) memory.Fault
	}{
		"during the check for a writer": {time.Nanosecond, func(w *world) memory.Fault {
			return memory.Fault{Op: memory.List, Prefix: w.manifest(), Err: store.ErrUnavailable}
		}},
		"while another process may write": {90 * time.Second, func(*world) memory.Fault { return memory.Fault{Err: store.ErrUnavailable} }},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFilledWorld(t)
			w.advanceStore()
			w.still = c.still
			ctx, _ := w.forAMinute()
			away := sync.OnceFunc(func() { w.store.Inject(c.away(w)) })
			if c.still < time.Second {
				away()
			}
			pause := w.wait
			w.wait = func(ctx context.Context, times int) {
				away()
				pause(ctx, times)
			}
			_, err := w.startWithin(ctx, nil)
			require.ErrorIs(t, err, context.Canceled)
			assert.Empty(t, w.preserved())

			w.store.ClearFaults()
			w.wait, w.still = func(context.Context, int) {}, time.Nanosecond
			require.NoError(t, w.run())
			w.requireKeys("a", "key")
			assert.Len(t, w.preserved(), 1)
		})
	}
}

// Without the store's clock it is unknown whether another process writes. The data is complete and served without a
// store.
func TestStoreWithoutAClockDelaysCompleteDataOnlyBriefly(t *testing.T) {
	w := newFilledWorld(t)
	w.still, w.options.Owner = time.Hour, func(string) string { return "of another name by now" }
	w.store.Inject(memory.Fault{Op: memory.Put, Prefix: "probe/", Err: store.ErrDenied})
	ctx, began := w.forAMinute()
	w.requireStartsWithin(ctx)
	assert.Equal(t, comparing, w.now().Sub(began))
}

// A wrong clock must not delay a restore forever.
func TestObjectsFromTheFutureDelayNoRestoreForever(t *testing.T) {
	w, clock := lostVolume(t)
	start := *clock
	*clock = clock.Add(-24 * time.Hour)
	w.wait = func(context.Context, int) { *clock = clock.Add(30 * time.Second) }
	require.NoError(t, w.run())
	assert.Equal(t, start.Add(-24*time.Hour+90*time.Second), *clock)
}

// An upload from this volume does not prove that another process runs.
func TestRequestedRestoreUploadsTheVolumeAndBuildsOnce(t *testing.T) {
	for name, test := range map[string]struct {
		target archive.Target
		keys   []string
	}{
		"to a revision": {archive.Target{Revision: 2}, []string{"key"}},
		"to the latest": {archive.Target{}, []string{"key", "only on the volume"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFilledWorld(t)
			w.put("only on the volume")
			w.still = time.Hour
			w.options.Flush = func(_ context.Context, dataDir string, _ datadir.Position) error {
				assert.Equal(t, w.member.DataDir, dataDir)
				w.backUp()
				return nil
			}
			w.options.Request = &Request{Target: test.target, ID: "drop"}
			w.forbidPauses()
			builds := 0
			require.NoError(t, w.runWith(func(action Action) error {
				if action == BuildData {
					builds++
				}
				return nil
			}))
			assert.Equal(t, 1, builds)
			w.requireKeys(test.keys...)
		})
	}
}

// endSession adds the end of a session to generation 1.
func (w *world) endSession(source format.Source) {
	w.t.Helper()
	head, err := w.archive.Head(w.t.Context(), 1)
	require.NoError(w.t, err)
	builder, err := format.NewSegmentBuilder(w.archive.Keys(), head.Start)
	require.NoError(w.t, err)
	object, err := builder.Finish(source)
	require.NoError(w.t, err)
	require.NoError(w.t, w.archive.PutStored(w.t.Context(), 1, object.Position, object.Reader()))
}

func TestOnlyWritersThatMayRunElsewhereAreWaitedFor(t *testing.T) {
	this := archive.Identity{Cluster: ours, Generation: 1, Session: "this"}
	wroteHere := func(session string) func(*world) {
		return func(w *world) {
			w.endSession(format.Source{Session: session})
			require.NoError(t, this.Write(w.member.DataDir))
			w.damage()
		}
	}
	for name, test := range map[string]struct {
		action              func(*world)
		pauses, generations int
		keys                []string
	}{
		"it was a process on this very volume, which is broken": {wroteHere("this"), 0, 2, []string{"key"}},
		"it was another one": {wroteHere("another"), 3, 2, []string{"key"}},
		// A copy of the volume names the session of the process that still runs on the original. etcd syncs a
		// revision to disk before that session stores it, so data that lacks a stored revision is a copy or an older
		// state.
		"this is a copy of its volume": {func(w *world) {
			require.NoError(t, this.Write(w.member.DataDir))
			w.advanceStore()
			w.endSession(format.Source{Session: "this"})
		}, 3, 2, []string{"a", "key"}},
		// A complete copy may run in another namespace: it waits while the store's owner writes. Once the owner is
		// idle, the copy counts as the same cluster with a new name.
		"these are data of another name": {func(w *world) {
			w.options.Owner = func(token string) string { return "second/" + token }
		}, 3, 1, []string{"key"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFilledWorld(t)
			test.action(w)
			clock, waited := time.Now(), 0
			w.still, w.now = 90*time.Second, func() time.Time { return clock }
			w.store.Now = w.now
			w.wait = func(context.Context, int) { waited++; clock = clock.Add(31 * time.Second) }
			require.NoError(t, w.run())
			assert.Equal(t, test.pauses, waited)
			assert.Len(t, w.generations(), test.generations)
			assert.Len(t, w.preserved(), test.generations-1)
			w.requireKeys(test.keys...)
		})
	}
}
