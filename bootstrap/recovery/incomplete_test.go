package recovery

import (
	"context"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"

	"etcd-wrapper/bootstrap/backup/archive"
	"etcd-wrapper/bootstrap/backup/seal"
	"etcd-wrapper/bootstrap/backup/seal/sealtest"
	"etcd-wrapper/bootstrap/backup/segment"
	"etcd-wrapper/bootstrap/backup/store"
	"etcd-wrapper/bootstrap/backup/store/memory"
	"etcd-wrapper/exitcode"
)

// sealedBy has what is written from now on sealed with keys, and what is recovered.
func (w *world) sealedBy(keys *seal.Keys) {
	w.archive = archive.New(w.store, keys)
	w.options.Archive = w.archive
}

// successor are keys that sign with another one, and trust both.
func successor(t *testing.T, former, present sealtest.Pair) *seal.Keys {
	t.Helper()
	return sealtest.Load(t, seal.Files{
		Recipients: former.Recipients, Identities: former.Identities, SigningKey: present.SigningKey,
		TrustedKeys: sealtest.Joined(t, former.TrustedKeys, present.TrustedKeys),
	})
}

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
	require.NoError(w.t, w.archive.PutSegment(w.t.Context(), object))
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

// Keys are changed, and forgotten: nothing older comes back in the place of what is signed with another one.
func TestWhatNobodyTrustsIsNotDamagedAndNothingOlderComesBack(t *testing.T) {
	trusted, other := sealtest.New(t), sealtest.New(t)
	for what, of := range map[string]struct {
		written func(w *world) string // the name of what nobody trusts
		spoilt  func(w *world)
	}{
		"a full, empty volume": {func(w *world) string {
			w.backUp(1)
			return "/manifest.json"
		}, func(w *world) { require.NoError(w.t, os.RemoveAll(w.member.DataDir)) }},
		"a full, broken volume": {func(w *world) string {
			w.backUp(1)
			return "/manifest.json"
		}, (*world).spoil},
		"the last segment": {func(w *world) string {
			return archive.SegmentName(1, w.ship().Position)
		}, (*world).spoil},
		"a segment in the middle": {func(w *world) string {
			name := archive.SegmentName(1, w.ship().Position)
			w.put("d")
			own := w.archive
			w.archive = archive.New(w.store, trusted.Load(w.t))
			defer func() { w.archive = own }()
			head, err := own.Head(w.t.Context(), 1)
			require.NoError(w.t, err)
			last := segmentBehind(w, head.Start)
			require.NoError(w.t, w.archive.PutSegment(w.t.Context(), last))
			return name
		}, (*world).spoil},
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t)
			w.sealedBy(trusted.Load(t))
			w.used()
			w.put("a", "b", "c")
			w.sealedBy(successor(t, trusted, other))
			name := of.written(w)
			w.sealedBy(trusted.Load(t))
			of.spoilt(w)
			w.requireRefused("gen/000001/", name, "--backup-trusted-keys", "--restore-to", "nothing was moved")

			w.options.Request = &Request{Target: archive.Target{Revision: 2}, ID: "we know"}
			require.NoError(t, w.run(), "who asks for a revision gets that")
			keys, _ := w.keys()
			assert.Equal(t, []string{"key"}, keys)
		})
	}
}

// segmentBehind is one of a row that goes on from a start.
func segmentBehind(w *world, start segment.Start) segment.Object {
	builder, err := segment.NewBuilder(w.archive.Keys(), start)
	require.NoError(w.t, err)
	key := []byte("\x00\x00\x00\x00\x00\x00\x00\x00_\x00\x00\x00\x00\x00\x00\x00\x00")
	key[7] = byte(start.Position.Revision)
	require.NoError(w.t, builder.Row(segment.Row{Key: key}))
	object, err := builder.Finish(segment.Source{})
	require.NoError(w.t, err)
	return object
}

func TestWhereNothingIsTrustedNothingIsDone(t *testing.T) {
	for what, trusted := range map[string]func(w *world){
		"the birth certificate": func(*world) {},
		"all fulls": func(w *world) {
			all, err := w.archive.History(t.Context())
			require.NoError(t, err)
			require.NoError(t, w.store.Delete(t.Context(), "cluster.json"))
			require.NoError(t, w.store.Delete(t.Context(), archive.GenerationPrefix(1)+"generation.json"))
			_, err = w.options.Archive.Found(t.Context(), all.Cluster.Cluster, at)
			require.NoError(t, err)
		},
	} {
		t.Run(what, func(t *testing.T) {
			w, pair := newWorld(t), sealtest.New(t)
			w.used()
			w.options.Archive = archive.New(w.store, pair.Load(t))
			trusted(w)
			require.NoError(t, os.RemoveAll(w.member.DataDir))
			w.requireRefused("it has no signature", "--backup-trusted-keys")
		})
	}
}

func TestWhatNobodyTrustsKeepsNoMemberFromStartingThatHasEverything(t *testing.T) {
	w, pair, other := newWorld(t), sealtest.New(t), sealtest.New(t)
	w.sealedBy(pair.Load(t))
	w.used()
	w.put("a")
	w.sealedBy(successor(t, pair, other))
	w.backUp(1)
	w.sealedBy(pair.Load(t))
	require.NoError(t, w.run())
}

func TestATargetThatNobodyTrustsIsNoneThatIsNotKept(t *testing.T) {
	w, pair, other := newWorld(t), sealtest.New(t), sealtest.New(t)
	w.sealedBy(pair.Load(t))
	w.used()
	w.put("a", "b")
	w.sealedBy(successor(t, pair, other))
	w.ship()
	w.sealedBy(pair.Load(t))
	w.options.Request = &Request{Target: archive.Target{Revision: 3}, ID: "a"}
	w.requireRefused("revision 3 is not kept", "gen/000001/segment/", "--backup-trusted-keys")
}

func TestAVolumeThatLacksWhatNobodyTrustsIsNotStarted(t *testing.T) {
	w, pair, other := newWorld(t), sealtest.New(t), sealtest.New(t)
	w.sealedBy(pair.Load(t))
	w.used()
	w.older = filepath.Join(t.TempDir(), "older")
	require.NoError(t, os.CopyFS(w.older, os.DirFS(w.member.DataDir)))
	w.put("a")
	w.sealedBy(successor(t, pair, other))
	w.backUp(1)
	w.sealedBy(pair.Load(t))
	w.rollBack()
	w.requireRefused("end with revision 2, and names in the store tell of revision 3", "/manifest.json", "--recover=never", "--backup-trusted-keys")
}

func TestWithoutTheIdentitiesNothingIsDoneAndTheFlagIsNamed(t *testing.T) {
	w, pair := newWorld(t), sealtest.New(t)
	w.sealedBy(pair.Load(t))
	w.used()
	w.spoil()
	w.sealedBy(sealtest.Load(t, seal.Files{TrustedKeys: pair.TrustedKeys}))
	w.requireRefused("there is no --backup-identities", "nothing was moved")
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
	r = New(w.options)
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
