package recovery

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/archivetest"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/format/formattest"
	"etcd-wrapper/backup/restore"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
	"etcd-wrapper/exitcode"
	"etcd-wrapper/internal/disk"
	"etcd-wrapper/recovery/peers"
	"etcd-wrapper/recovery/seed"
)

// uploadSegment stores a segment with the rows that only the volume has.
func (w *world) uploadSegment() format.Object {
	w.t.Helper()
	head, err := w.archive.Head(w.t.Context(), 1)
	require.NoError(w.t, err)
	builder, err := format.NewSegmentBuilder(w.archive.Keys(), head.Start)
	require.NoError(w.t, err)
	db, err := bolt.Open(w.database(), 0, &bolt.Options{ReadOnly: true})
	require.NoError(w.t, err)
	defer db.Close()
	require.NoError(w.t, db.View(func(tx *bolt.Tx) error {
		return tx.Bucket([]byte("key")).ForEach(func(key, value []byte) error {
			row := format.Row{Key: key, Value: value}
			if revision, err := row.Revision(); err != nil || revision <= head.Revision() {
				return err
			}
			return builder.Add(&row)
		})
	}))
	object, err := builder.Finish(format.Source{})
	require.NoError(w.t, err)
	require.NoError(w.t, archivetest.PutSegment(w.t.Context(), w.archive, object))
	return object
}

// requireRefused requires that a run is refused and moves no data.
func (w *world) requireRefused(says ...string) {
	w.t.Helper()
	before, kept := w.files(), w.objects("")
	err := w.run()
	assert.Equal(w.t, exitcode.EtcdFailed, w.statusOf(err), err)
	for _, said := range says {
		assert.ErrorContains(w.t, err, said)
	}
	remembers := func(name string) bool { return name == recordFile } // for valid data, the rejection is recorded
	assert.Equal(w.t, slices.DeleteFunc(before, remembers), slices.DeleteFunc(w.files(), remembers))
	assert.Equal(w.t, kept, w.objects(""), "nothing has come into the store")
}

// objects returns the names of the store's objects with a prefix.
func (w *world) objects(prefix string) (names []string) {
	w.t.Helper()
	for object, err := range w.store.List(w.t.Context(), prefix, "") {
		require.NoError(w.t, err)
		names = append(names, object.Name)
	}
	return names
}

// files returns the files of all data directories.
func (w *world) files() (found []string) {
	w.t.Helper()
	for _, of := range []string{"*/member/*/*", recordFile} {
		all, err := fs.Glob(os.DirFS(w.volume), of)
		require.NoError(w.t, err)
		found = append(found, all...)
	}
	return found
}

func TestFullVolumeIsNoDamagedBackup(t *testing.T) {
	w := newFilledWorld(t)
	w.damage()
	w.options.Inspect = func(_ context.Context, path string) error {
		return &fs.PathError{Op: "write", Path: path, Err: syscall.ENOSPC}
	}
	w.requireRefused("the volume has no room for the restored data", "no space left on device", "enlarge the volume")
}

func TestProgressWhileTheStoreIsUnreachable(t *testing.T) {
	w := newFilledWorld(t)
	w.store.Inject(memory.Fault{Op: memory.Get, Times: 3, Err: memory.ErrUnreachable})
	r := w.recovery()
	var waits, asks []Progress
	r.wait = func(context.Context, int) { waits = append(waits, r.Progress()) }
	r.interrupt = func(action Action) error {
		if action == AskTheStore {
			asks = append(asks, r.Progress())
		}
		return nil
	}
	require.NoError(t, w.prepare(r))
	require.Len(t, waits, 3)
	for _, is := range waits {
		assert.Equal(t, AskStore, is.State)
		assert.Equal(t, waits[0].Since, is.Since, "since the store cannot be read")
		assert.Contains(t, is.Reason, "memory://test/: store unavailable: dial tcp: connection refused; check that the store can be reached")
		assert.Contains(t, is.Reason, "; next attempt within ")
	}
	for _, is := range asks[1:] {
		assert.Contains(t, is.Reason, "store unavailable", "while it is asked again")
		assert.NotContains(t, is.Reason, "next attempt")
	}
}

// corrupt damages objects of the store.
func (w *world) corrupt(names ...string) {
	w.t.Helper()
	for _, name := range names {
		content, exists := w.store.Content(name)
		require.True(w.t, exists, name)
		w.store.SetContent(name, append(content, 'x'))
	}
}

// replaceKeys gives the member keys that did not sign anything in the store.
func (w *world) replaceKeys() {
	w.options.Archive = archive.New(w.store, formattest.NewKeys(w.t).Load(w.t))
}

// manifest returns the name of the newest full snapshot's manifest.
func (w *world) manifest() string {
	w.t.Helper()
	head, err := w.archive.Head(w.t.Context(), 1)
	require.NoError(w.t, err)
	return archive.ManifestName(1, head.Full.Name())
}

func TestValidVolumeStartsIfNoKeyDecryptsTheBackups(t *testing.T) {
	w, pair := newFilledWorld(t), formattest.NewKeys(t)
	w.emptyStore()
	w.setKeys(pair.Load(t))
	w.backUp()
	w.put("a")
	w.uploadSegment()
	w.setKeys(formattest.LoadKeys(t, format.KeyFiles{TrustedKeys: pair.TrustedKeys, Identities: formattest.NewKeys(t).Identities}))
	w.requireStarts()
}

// failSpool makes uploads of the spool fail with these errors in turn, and counts the uploads.
func (w *world) failSpool(answers ...error) *int {
	asked := new(int)
	w.options.SpoolDir = filepath.Join(w.volume, "backup.spool")
	w.options.FlushSpool = func(context.Context, archive.Identity, int64) error {
		if *asked++; *asked <= len(answers) {
			return answers[*asked-1]
		}
		return nil
	}
	return asked
}

func TestSpoolIsUploadedUnlessValidDataHaveIt(t *testing.T) {
	for name, test := range map[string]struct {
		action func(*world)
		has    archive.Identity // the identity that the volume reports
	}{
		"valid":  {func(*world) {}, archive.Identity{Cluster: ours, Generation: 1}},
		"broken": {losses["broken"], archive.Identity{}},
		"empty":  {losses["empty"], archive.Identity{}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFilledWorld(t)
			reach := positionOf(t, w.member.DataDir).HighestRevision
			test.action(w)
			flushes := 0
			w.options.FlushSpool = func(_ context.Context, data archive.Identity, told int64) error {
				flushes++
				assert.Equal(t, test.has, data)
				assert.True(t, told == reach || !data.Known())
				assert.Len(t, w.generations(), 1)
				return nil
			}
			require.NoError(t, w.run())
			assert.Equal(t, 1, flushes)
		})
	}
}

func TestUploadOfTheSpoolIsRetried(t *testing.T) {
	for _, silence := range []error{&store.Unavailable{}, context.DeadlineExceeded, store.ErrDenied} {
		for name, lose := range losses {
			for _, listing := range []peers.Membership{"", peers.Gone, peers.Founding} { // for a member of several
				if name == "broken" && listing == peers.Founding {
					continue // one has had data
				}
				w, o := ofThree(t)
				if o.listing = listing; listing == "" {
					w = newFilledWorld(t)
				}
				lose(w)
				w.wait = func(context.Context, int) { assert.Len(t, w.generations(), 1) }
				asked := w.failSpool(silence, fmt.Errorf("segment: %w", silence))
				require.NoError(t, w.run())
				assert.Contains(t, w.log.String(), "uploading segments that wait on the volume")
				assert.Equal(t, 3, *asked)
				assert.Len(t, w.generations(), 2)
			}
		}
	}
}

func TestSpoolThatCannotBeUploadedStopsTheRestore(t *testing.T) {
	for name, test := range map[string]struct {
		why    error
		status exitcode.Code // 0 if recovery retries
	}{
		"it does not go on from there":    {errors.New("it does not go on from there"), exitcode.EtcdFailed},
		"the store's last object is none": {fmt.Errorf("segment 7: %w", format.ErrDamaged), exitcode.EtcdFailed},
		"the disk cannot be read":         {fmt.Errorf("segment 7: %w", syscall.EIO), exitcode.Clean},
		"it was merged at that moment":    {fmt.Errorf("segment 7: %w", store.ErrNotFound), exitcode.Clean},
		"others were always faster":       {fmt.Errorf("segment 7: %w", store.ErrExists), exitcode.Clean},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFilledWorld(t)
			w.lose()
			w.failSpool(test.why)
			err := w.run()
			require.ErrorIs(t, err, test.why)
			require.ErrorContains(t, err, "to continue without them, move "+w.options.SpoolDir+" away")
			assert.Len(t, w.generations(), 1)
			assert.Equal(t, test.status, w.statusOf(err))
		})
	}
}

// The spool is intact and must stay in place.
func TestSpoolIsKeptWhileKeysAreMissing(t *testing.T) {
	for _, lacking := range []error{format.ErrUntrusted, format.ErrNoIdentity} {
		w := newFilledWorld(t)
		w.damage()
		w.failSpool(fmt.Errorf("the last segment: %w", lacking), lacking)
		w.requireRefused(lacking.Error(), "add the key")
		require.NotContains(t, w.run().Error(), w.options.SpoolDir)
	}
}

// statusOf returns the exit status of a refusal; 0 if recovery retries.
func (w *world) statusOf(err error) exitcode.Code {
	w.t.Helper()
	require.Error(w.t, err)
	return exitcode.StatusOf(err, exitcode.Clean)
}

func TestPreservedSpoolsAreDeletedLikeData(t *testing.T) {
	w := newFilledWorld(t)
	w.failSpool()
	at := func(path, when string) string {
		parsed, err := time.Parse("2006-01-02", when)
		require.NoError(t, err)
		name := disk.PreservedName(path, parsed)
		require.NoError(t, os.Mkdir(name, 0o700))
		return name
	}
	first, second := at(w.options.SpoolDir, "2026-01-01"), at(w.options.SpoolDir, "2026-01-02")
	data := at(w.member.DataDir, "2026-01-03")
	w.lose()
	r := w.recovery()
	r.checkRoom = func(seed.Seed, restore.Source) error {
		if _, err := os.Stat(first); err == nil {
			return fmt.Errorf("%w on the volume", restore.ErrNoRoom)
		}
		return nil
	}
	require.NoError(t, w.prepare(r))
	assert.NoDirExists(t, first)
	assert.DirExists(t, second)
	assert.DirExists(t, data)

	r.checkRoom = func(seed.Seed, restore.Source) error { return fmt.Errorf("%w on the volume", restore.ErrNoRoom) }
	w.lose()
	require.ErrorContains(t, w.prepare(r), "not enough room")
	assert.DirExists(t, second, "the newest of each stays until a younger backup was verified")
	assert.DirExists(t, data)
}
