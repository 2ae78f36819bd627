package backups_test

import (
	"cmp"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/locate"
)

// A depot is a backup store that tests read while the program writes to it.
type depot struct {
	url     string // --backup-store URL
	proxied string // --backup-store URL for a program that connects through a proxy; empty if there is no proxy

	mount string // for a store in a directory: the mount point of its volume, which the program must not create
	dir   string // for a store in a directory: that directory, which is below mount
}

func newDepot(t *testing.T) depot {
	t.Helper()
	mount := filepath.Join(t.TempDir(), "mount")
	dir := filepath.Join(mount, "backups")
	require.NoError(t, os.MkdirAll(dir, 0o700))
	return depot{url: "file://" + dir, mount: mount, dir: dir}
}

func (d depot) flag() string { return "--backup-store=" + cmp.Or(d.proxied, d.url) }

func (d depot) store(t *testing.T) store.Store {
	t.Helper()
	in, err := locate.Open(d.url)
	require.NoError(t, err)
	return in
}

func (d depot) archive(t *testing.T) *archive.Archive {
	t.Helper()
	return archive.New(d.store(t), &format.Keys{})
}

// objects returns the name and size of every object in the store.
func (d depot) objects(t *testing.T) map[string]int64 {
	t.Helper()
	found := map[string]int64{}
	for object, err := range d.store(t).List(t.Context(), "", "") {
		require.NoError(t, err)
		found[object.Name] = object.Size
	}
	return found
}

// generation returns the store's generation, and fails the test if there is not exactly one.
func (d depot) generation(t *testing.T) archive.GenerationContents {
	t.Helper()
	history, err := d.archive(t).History(t.Context())
	require.NoError(t, err)
	require.Len(t, history.Generations, 1)
	return history.Generations[0]
}

// head returns the latest revision in the store, or 0 if the store is empty.
func (d depot) head(t *testing.T) int64 {
	t.Helper()
	head, err := d.archive(t).Head(t.Context(), 1)
	if err != nil || head.Empty() {
		return 0
	}
	return head.Revision()
}

// requireSound requires that every chain and every full snapshot can be read completely and that no segments overlap.
// It returns the chains.
func (d depot) requireSound(t *testing.T) []archive.Chain {
	t.Helper()
	kept := d.generation(t)
	require.NotEmpty(t, kept.Chains)
	for _, chain := range kept.Chains {
		path, err := d.archive(t).Find(t.Context(), archive.Target{Revision: chain.To})
		require.NoError(t, err)
		path.Full = chain.Fulls[0].Full // start at the first full snapshot to read the whole chain
		_, err = d.archive(t).Read(t.Context(), path, func(format.Row) error { return nil })
		require.NoError(t, err, "the chain from %d to %d can be read", chain.From, chain.To)
		for _, full := range chain.Fulls {
			d.requireReadable(t, full.Full)
		}
	}
	d.requireDisjoint(t, kept)
	return kept.Chains
}

func (d depot) requireReadable(t *testing.T, full archive.Full) {
	t.Helper()
	content, err := d.archive(t).OpenFull(t.Context(), full)
	require.NoError(t, err)
	defer content.Close()
	_, err = io.Copy(io.Discard, content)
	require.NoError(t, err, "full %s can be read", full.Name())
}

func (d depot) requireDisjoint(t *testing.T, kept archive.GenerationContents) {
	t.Helper()
	var next format.Position
	for _, object := range kept.Objects {
		if object.Level != archive.Segment {
			continue
		}
		manifest, err := d.archive(t).Manifest(t.Context(), object.Generation, object.Start)
		if errors.Is(err, store.ErrNotFound) {
			continue // merged and deleted in the meantime
		}
		require.NoError(t, err)
		assert.LessOrEqual(t, next.Compare(object.Start), 0, "the segment at position %s overlaps the previous one, which ends at %s", object.Start, next)
		next = manifest.Next()
	}
}

// A state maps each key to its value.
type state map[string]string

// keys reads the full snapshot and the segments from which a restore to the target is made, and returns the resulting
// state.
func (d depot) keys(t *testing.T, target archive.Target) state {
	t.Helper()
	from := d.archive(t)
	path, err := from.Find(t.Context(), target)
	require.NoError(t, err)
	restored := d.ofFull(t, path.Full)
	_, err = from.Read(t.Context(), path, func(row format.Row) error { return restored.apply(row.Key, row.Value) })
	require.NoError(t, err)
	return restored
}

func (d depot) ofFull(t *testing.T, full archive.Full) state {
	t.Helper()
	content, err := d.archive(t).OpenFull(t.Context(), full)
	require.NoError(t, err)
	defer content.Close()
	file := filepath.Join(t.TempDir(), "full")
	all, err := io.ReadAll(content)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, all, 0o600))
	return ofSnapshot(t, file)
}

// ofSnapshot returns the state contained in a stock snapshot or a database file.
func ofSnapshot(t *testing.T, path string) state {
	t.Helper()
	content := state{}
	eachRow(t, path, func(k, v []byte) error { return content.apply(k, v) })
	return content
}

// eachRow calls visit for each row in a database file. The file may also be a snapshot, which ends with a digest.
func eachRow(t *testing.T, path string, visit func(k, v []byte) error) {
	t.Helper()
	db, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true})
	require.NoError(t, err)
	defer db.Close()
	require.NoError(t, db.View(func(tx *bolt.Tx) error { return tx.Bucket(schema.Key.Name()).ForEach(visit) }))
}

// apply applies a row from etcd's "key" bucket to the state.
func (s state) apply(key, value []byte) error {
	var kv mvccpb.KeyValue
	if err := kv.Unmarshal(value); err != nil {
		return err
	}
	if len(kv.Key) == 0 {
		return nil // a restore adds a row like this to bump the revision
	}
	if len(key) > len(mvcc.RevToBytes(mvcc.Revision{}, mvcc.NewRevBytes())) { // the row is a tombstone
		delete(s, string(kv.Key))
	} else {
		s[string(kv.Key)] = string(kv.Value)
	}
	return nil
}

// targetLatest selects the latest revision in the store.
var targetLatest archive.Target
