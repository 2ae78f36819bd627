package verification

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/storage/mvcc"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store/locate"
	"etcd-wrapper/backup/store/memory"
)

// In these tests the backup is what etcd had, and that was no good.

func withoutHash(full *archive.Full) { full.Hash = nil }

// bbolt panics in a goroutine of its own.
func TestADatabaseThatBboltPanicsOfFails(t *testing.T) {
	url := "file://" + t.TempDir()
	s, err := locate.Open(url)
	require.NoError(t, err)
	w := newWorld(t, s, &format.Keys{})
	w.put(60) // more than bbolt keeps within the page above, which it does not check
	w.decay = func(database []byte) []byte {
		for at := bytes.Index(database, revisionKey(5)); at >= 0; at = bytes.Index(database, revisionKey(5)) {
			copy(database[at:], revisionKey(900)) // which comes behind the ones that follow it
		}
		return database
	}
	full := w.putFull(withoutHash)
	path := archive.Path{Full: full, Revision: full.Revision}
	result, err := inChild("child-verify", url, filepath.Join(t.TempDir(), "scratch"))(t.Context(), path)
	require.NoError(t, err)
	require.Equal(t, archive.Failed, result.Outcome)
	require.Contains(t, result.Why, "bringing it back crashed: panic: freepages: failed to get all reachable pages")
}

func revisionKey(revision int64) []byte {
	return mvcc.RevToBytes(mvcc.Revision{Main: revision}, mvcc.NewRevBytes())
}

func TestADatabaseWhosePagesAreGoneFails(t *testing.T) {
	w := newWorld(t, memory.New(), &format.Keys{})
	w.put(7)
	w.decay = func(database []byte) []byte {
		clear(database[2*os.Getpagesize():]) // all but the two that bbolt reads first
		return database
	}
	w.putFull(withoutHash)
	w.requireFailed(w.ofFull(), "the backup is damaged: its database cannot be read")
}

func TestADatabaseThatHasLostPagesFails(t *testing.T) {
	w := newWorld(t, memory.New(), &format.Keys{})
	w.put(7)
	w.decay = func(database []byte) []byte { return withoutFreelist(t, database) }
	w.putFull(withoutHash)
	w.requireFailed(w.ofFull(), "bbolt's page check found ")
}

// withoutFreelist has pages free that no list of free pages has, in a database that keeps one.
func withoutFreelist(t *testing.T, database []byte) []byte {
	path := filepath.Join(t.TempDir(), "db")
	require.NoError(t, os.WriteFile(path, database, 0o600))
	db, err := bolt.Open(path, 0, &bolt.Options{NoSync: true}) // which writes the list
	require.NoError(t, err)
	require.NoError(t, db.Close())
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	const flags, count, isFreelist = 8, 10, 0x10 // in a page's header
	emptied := 0
	for page := 2 * os.Getpagesize(); page < len(content); page += os.Getpagesize() {
		if binary.NativeEndian.Uint16(content[page+flags:]) == isFreelist && binary.NativeEndian.Uint16(content[page+count:]) > 0 {
			binary.NativeEndian.PutUint16(content[page+count:], 0)
			emptied++
		}
	}
	require.Positive(t, emptied)
	return content
}
