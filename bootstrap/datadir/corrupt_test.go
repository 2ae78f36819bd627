package datadir

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/storage/mvcc"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/bootstrap/datadir/datadirtest"
)

// verdict is what Verify finds wrong, without its warnings.
func verdict(t testing.TB, dir string, mode bootstrap.Mode) error {
	t.Helper()
	_, err := Verify(t.Context(), dir, mode)
	return err
}

func write(t *testing.T, path, content string) {
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
}

func mkdir(t *testing.T, path string)                  { require.NoError(t, os.MkdirAll(path, 0o700)) }
func remove(t *testing.T, path string)                 { require.NoError(t, os.RemoveAll(path)) }
func rename(t *testing.T, from, to string)             { require.NoError(t, os.Rename(from, to)) }
func truncate(t *testing.T, path string, length int64) { require.NoError(t, os.Truncate(path, length)) }

func last(paths []string) string { return paths[len(paths)-1] }

func withoutSnapshots(t *testing.T, dir string) {
	for _, path := range datadirtest.Snapshots(t, dir) {
		remove(t, path)
	}
}

func withoutLogs(t *testing.T, dir string) {
	withoutSnapshots(t, dir)
	remove(t, dir+"/member/wal")
}

// zeroLastSegment leaves the last segment as it was when it was new, which no checksum tells.
func zeroLastSegment(t *testing.T, dir string) {
	path := last(datadirtest.Segments(t, dir))
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	clear(content[2000:])
	require.NoError(t, os.WriteFile(path, content, 0o600))
}

func addForeignFiles(t *testing.T, dir string) {
	for _, name := range []string{"notes", "member/notes", "member/wal/0.tmp", "member/wal/x.wal.broken", "member/snap/db.tmp1", "member/snap/x.snap.broken"} {
		write(t, filepath.Join(dir, name), "?")
	}
}

// update changes the database with bbolt, which leaves all its pages in order.
func update(t *testing.T, dir string, change func(tx *bolt.Tx) error) {
	db, err := bolt.Open(dir+"/member/snap/db", 0o600, nil)
	require.NoError(t, err)
	require.NoError(t, db.Update(change))
	require.NoError(t, db.Close())
}

func dropBucket(name string) func(t *testing.T, dir string) {
	return func(t *testing.T, dir string) {
		update(t, dir, func(tx *bolt.Tx) error { return tx.DeleteBucket([]byte(name)) })
	}
}

func putRevision(key, value []byte) func(t *testing.T, dir string) {
	return func(t *testing.T, dir string) {
		update(t, dir, func(tx *bolt.Tx) error { return tx.Bucket([]byte("key")).Put(key, value) })
	}
}

func revision(main int64) []byte {
	return mvcc.RevToBytes(mvcc.Revision{Main: main}, mvcc.NewRevBytes())
}

// emptyDatabase puts a new database, with its buckets, in the place of the one that was used.
func emptyDatabase(t *testing.T, dir string) {
	remove(t, dir+"/member/snap/db")
	update(t, dir, func(tx *bolt.Tx) error {
		_, err := tx.CreateBucket([]byte("key"))
		require.NoError(t, err)
		_, err = tx.CreateBucket([]byte("meta"))
		return err
	})
}

func halveDatabase(t *testing.T, dir string) {
	truncate(t, dir+"/member/snap/db", datadirtest.UsedBytes(t, dir)/2)
}

// fingerprint maps every path below dir to what it is, when it was modified and what it holds.
func fingerprint(t *testing.T, dir string) map[string]string {
	t.Helper()
	prints := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		var content []byte
		if info.Mode().IsRegular() {
			content, err = os.ReadFile(path)
		}
		prints[path] = fmt.Sprintf("%s %d %s %x", info.Mode(), info.Size(), info.ModTime(), sha256.Sum256(content))
		return err
	}))
	return prints
}
