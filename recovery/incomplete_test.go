package recovery

import (
	"context"
	"io/fs"
	"iter"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/archivetest"
	"etcd-wrapper/backup/format/seal"
	"etcd-wrapper/backup/format/segment"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
	"etcd-wrapper/exitcode"
)

// ship makes a segment of what the volume has and the store has not.
func (w *world) ship() segment.Object {
	w.t.Helper()
	head, err := w.archive.Head(w.t.Context(), 1)
	require.NoError(w.t, err)
	builder, err := segment.NewBuilder(w.archive.Keys(), head.Start)
	require.NoError(w.t, err)
	db, err := bolt.Open(w.database(), 0, &bolt.Options{ReadOnly: true})
	require.NoError(w.t, err)
	defer db.Close()
	require.NoError(w.t, db.View(func(tx *bolt.Tx) error {
		return tx.Bucket([]byte("key")).ForEach(func(key, value []byte) error {
			row := segment.Row{Key: key, Value: value}
			if revision, err := row.Revision(); err != nil || revision <= head.Revision() {
				return err
			}
			return builder.Row(row)
		})
	}))
	object, err := builder.Finish(segment.Source{})
	require.NoError(w.t, err)
	require.NoError(w.t, archivetest.PutSegment(w.t.Context(), w.archive, object))
	return object
}

// requireRefused holds that a run ends with a sentence for good, and has moved nothing.
func (w *world) requireRefused(says ...string) {
	w.t.Helper()
	before, err := fs.Glob(os.DirFS(w.volume), "*/member/*/*")
	require.NoError(w.t, err)
	generations := len(w.generations())
	err = w.run()
	var refusal *Refusal
	require.ErrorAs(w.t, err, &refusal)
	assert.Equal(w.t, exitcode.EtcdFailed, refusal.Status())
	for _, said := range says {
		assert.ErrorContains(w.t, err, said)
	}
	after, err := fs.Glob(os.DirFS(w.volume), "*/member/*/*")
	require.NoError(w.t, err)
	assert.Equal(w.t, before, after)
	assert.Empty(w.t, w.asides())
	assert.Empty(w.t, w.leftovers())
	if w.options.Archive == w.archive {
		assert.Len(w.t, w.generations(), generations)
	}
}

func TestWhatIsMissingIsLookedForAgainBeforeAnythingOlderIsTaken(t *testing.T) {
	w := newWorld(t)
	w.used()
	w.put("a")
	w.backUp(1)
	kept, err := w.archive.History(t.Context())
	require.NoError(t, err)
	newest := kept.Newest().Fulls[1].Label
	require.NoError(t, os.RemoveAll(w.member.DataDir))
	w.store.Inject(memory.Fault{Op: memory.Get, Prefix: archive.DataName(1, newest), Times: 3, Err: store.ErrNotFound})
	require.NoError(t, w.run())
	keys, _ := w.keys()
	assert.Equal(t, []string{"a", "key"}, keys)
	assert.Equal(t, 3, strings.Count(w.log.String(), "it is looked for again"))
}

// late is a store that lists some objects late.
type late struct {
	store.Store
	hides    string
	listings int // that it still lacks them
}

func (l *late) List(ctx context.Context, prefix, after string) iter.Seq2[store.Object, error] {
	return func(yield func(store.Object, error) bool) {
		hidden := l.listings > 0
		for object, err := range l.Store.List(ctx, prefix, after) {
			if hidden && object.Name == l.hides {
				l.listings--
				continue
			}
			if !yield(object, err) {
				return
			}
		}
	}
}

func TestWhatIsListedLateIsWaitedFor(t *testing.T) {
	w := newWorld(t)
	w.used()
	w.put("a")
	name := archive.SegmentName(1, w.ship().Position)
	require.NoError(t, os.RemoveAll(w.member.DataDir))
	w.options.Archive = archive.New(&late{w.store, name, 8}, &seal.Keys{})
	require.NoError(t, w.run())
	keys, _ := w.keys()
	assert.Equal(t, []string{"a", "key"}, keys)
	assert.Contains(t, w.log.String(), "lists what leads to 2")
}

func TestAVolumeThatBecomesFullIsNoDamagedBackup(t *testing.T) {
	w := newWorld(t)
	w.used()
	w.spoil()
	w.options.Inspect = func(_ context.Context, path string) error {
		return &fs.PathError{Op: "write", Path: path, Err: syscall.ENOSPC}
	}
	w.requireRefused("the volume was full", "no space left on device", "make the volume larger")
}

// A cluster that went back and was lost before it had backed up anything is what it went back to.
func TestTheLatestIsNotWhatWasUndone(t *testing.T) {
	for _, asked := range []bool{false, true} {
		w := newWorld(t)
		w.used()
		to := stand(t, w.member.DataDir).Revision
		w.put("a mistake")
		w.backUp(1)
		w.options.Request = &Request{Target: archive.Target{Revision: to}, ID: "drop"}
		require.NoError(t, w.run())
		require.NoError(t, os.RemoveAll(w.member.DataDir))
		w.options.Request = nil
		if asked {
			w.options.Request = &Request{ID: "bring back"}
		}
		require.NoError(t, w.run())
		keys, _ := w.keys()
		assert.Equal(t, []string{"key"}, keys)
	}
}

func TestWhoeverAsksWhileTheStoreIsAwayHearsWhyAndWhenItIsAskedAgain(t *testing.T) {
	w := newWorld(t)
	w.used()
	w.store.Inject(memory.Fault{Op: memory.Get, Times: 3, Err: memory.ErrUnreachable})
	var r *Recovery
	var waits, asks []Progress
	w.options.Pause = func(context.Context, int) { waits = append(waits, r.Progress()) }
	r = w.recovery()
	r.interrupt = func(action Action) error {
		if action == AskTheStore {
			asks = append(asks, r.Progress())
		}
		return nil
	}
	_, err := r.Run(t.Context(), w.member, w.examine)
	require.NoError(t, err)
	require.Len(t, waits, 3)
	for _, is := range waits {
		assert.Equal(t, AskStore, is.State)
		assert.Equal(t, waits[0].Since, is.Since, "since it is waited for")
		assert.Contains(t, is.Reason, "memory://test/: store unavailable: dial tcp: connection refused; the next try is within ")
	}
	for _, is := range asks[1:] {
		assert.Contains(t, is.Reason, "store unavailable", "while it is asked again")
		assert.NotContains(t, is.Reason, "the next try")
	}
}
