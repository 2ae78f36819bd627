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

// depot is a place for backups.
type depot struct {
	url     string // of --backup-store, as these tests read it
	through string // the same for the program, if that is led another way

	mount, dir string // the folder and its parent: if the parent is missing, nothing is created
}

func newDepot(t *testing.T) depot {
	t.Helper()
	mount := filepath.Join(t.TempDir(), "mount")
	dir := filepath.Join(mount, "backups")
	require.NoError(t, os.MkdirAll(dir, 0o700))
	return depot{url: "file://" + dir, mount: mount, dir: dir}
}

func (d depot) flag() string { return "--backup-store=" + cmp.Or(d.through, d.url) }

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

// objects are all that there are, with their sizes.
func (d depot) objects(t *testing.T) map[string]int64 {
	t.Helper()
	found := map[string]int64{}
	for object, err := range d.store(t).List(t.Context(), "", "") {
		require.NoError(t, err)
		found[object.Name] = object.Size
	}
	return found
}

// generation returns the only generation in the store.
func (d depot) generation(t *testing.T) archive.GenerationContents {
	t.Helper()
	history, err := d.archive(t).History(t.Context())
	require.NoError(t, err)
	require.Len(t, history.Generations, 1)
	return history.Generations[0]
}

// head is the last revision that is kept; 0 if nothing is.
func (d depot) head(t *testing.T) int64 {
	t.Helper()
	head, err := d.archive(t).Head(t.Context(), 1)
	if err != nil || head.Empty() {
		return 0
	}
	return head.Revision()
}

// requireSound reads every chain to its end and checks that no two segments overlap. It returns the chains.
func (d depot) requireSound(t *testing.T) []archive.Chain {
	t.Helper()
	kept := d.generation(t)
	require.NotEmpty(t, kept.Chains)
	for _, chain := range kept.Chains {
		path, err := d.archive(t).Find(t.Context(), archive.Target{Revision: chain.To})
		require.NoError(t, err)
		path.Full = chain.Fulls[0].Full // the longest way there is
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
			continue // merged and deleted meanwhile
		}
		require.NoError(t, err)
		assert.LessOrEqual(t, next.Compare(object.Start), 0, "segment %s begins before its predecessor ends, at %s", object.Start, next)
		next = manifest.Next()
	}
}

// state holds the values of keys.
type state map[string]string

// keys is the state at a revision, or of the latest, as the store has it.
func (d depot) keys(t *testing.T, target archive.Target) state {
	t.Helper()
	from := d.archive(t)
	path, err := from.Find(t.Context(), target)
	require.NoError(t, err)
	had := d.ofFull(t, path.Full)
	_, err = from.Read(t.Context(), path, func(row format.Row) error { return had.take(row.Key, row.Value) })
	require.NoError(t, err)
	return had
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

// ofSnapshot returns the values of keys in a stock snapshot or a database.
func ofSnapshot(t *testing.T, path string) state {
	t.Helper()
	had := state{}
	eachRow(t, path, func(k, v []byte) error { return had.take(k, v) })
	return had
}

// eachRow visits the rows of a database, which the digest of a snapshot may follow.
func eachRow(t *testing.T, path string, visit func(k, v []byte) error) {
	t.Helper()
	db, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true})
	require.NoError(t, err)
	defer db.Close()
	require.NoError(t, db.View(func(tx *bolt.Tx) error { return tx.Bucket(schema.Key.Name()).ForEach(visit) }))
}

// take applies a row of etcd's.
func (s state) take(key, value []byte) error {
	var kv mvccpb.KeyValue
	if err := kv.Unmarshal(value); err != nil {
		return err
	}
	if len(kv.Key) == 0 {
		return nil // with this a restore raises the revision
	}
	if len(key) > len(mvcc.RevToBytes(mvcc.Revision{}, mvcc.NewRevBytes())) { // it is marked as a deletion
		delete(s, string(kv.Key))
	} else {
		s[string(kv.Key)] = string(kv.Value)
	}
	return nil
}

// targetLatest is all that is kept.
var targetLatest archive.Target
