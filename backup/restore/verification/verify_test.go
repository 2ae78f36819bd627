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
	"etcd-wrapper/backup/format/formattest"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/locate"
	"etcd-wrapper/backup/store/memory"
)

func TestVerify_fullSnapshot(t *testing.T) {
	w := newWorld(t, memory.New(), formattest.NewKeys(t).Load(t))
	w.put(7)
	w.compact()
	w.put(6)
	full := w.putFull()
	result := w.requireVerified(w.ofFull())
	require.Equal(t, full.Hash, result.Hash)
	require.Equal(t, full.Database, result.Database)
	require.False(t, result.Segments)
	require.Positive(t, result.Seconds)
	require.NoError(t, w.PutResult(t.Context(), result))
	history, err := w.History(t.Context())
	require.NoError(t, err)
	require.Equal(t, archive.Verified, history.Newest().Fulls[0].Result.Outcome)
}

func TestVerify_fullSnapshotWithoutHash(t *testing.T) {
	w := newWorld(t, memory.New(), &format.Keys{})
	w.put(7)
	w.putFull(func(full *archive.Full) { full.Hash = nil })
	result := w.requireVerified(w.ofFull())
	require.Nil(t, result.Hash)
}

// etcd returns the hash that it recorded when it compacted at that revision; those rows are deleted now.
func TestVerify_ignoresHashesOfCompactedRows(t *testing.T) {
	w := newWorld(t, memory.New(), &format.Keys{})
	w.put(7)
	w.compact()
	full := w.putFull()
	require.Less(t, full.Hash.Compacted, full.Compacted)
	result := w.requireVerified(w.ofFull())
	require.Nil(t, result.Hash)
}

func TestVerify_comparesTheNewestCompactionHash(t *testing.T) {
	w := newWorld(t, memory.New(), &format.Keys{})
	w.put(4)
	w.putFull()
	w.put(8)
	w.putSegment()
	w.compact()
	w.put(8)
	w.putSegment()
	compacted := w.hashed
	w.compact()
	w.put(3)
	w.putSegment()
	result := w.requireVerified(w.test(w.next.Position.Revision - 4)) // before the last compaction
	require.True(t, result.Segments)
	require.Equal(t, compacted, result.Hash.Revision)
	require.Equal(t, w.full.Name(), result.Full)
	result = w.requireVerified(w.test(w.next.Position.Revision - 1))
	require.Equal(t, w.hashed, result.Hash.Revision)
	require.NoError(t, w.PutResult(t.Context(), result))
}

// All digests are right; only etcd's own hash reveals the error.
func TestVerify_findsWrongRows(t *testing.T) {
	w := newWorld(t, memory.New(), &format.Keys{})
	w.put(4)
	w.putFull()
	w.alter = func(row *format.Row) { row.Value[len(row.Value)-1]++ }
	w.put(8)
	w.putSegment()
	w.compact()
	w.put(2)
	w.putSegment()
	w.requireFailed(w.test(w.next.Position.Revision-1), "the hash of revision 13, compacted at 0, is ")
}

func TestVerify_findsAWrongManifest(t *testing.T) {
	for why, change := range map[string]func(*archive.Full){
		"its last revision is 8 and should be 9": func(full *archive.Full) { full.Revision++; full.Hash = nil },
		"and etcd's was ":                        func(full *archive.Full) { full.Hash.Hash++ },
		"the database ends before that revision": func(full *archive.Full) { full.Hash.Revision += 50 },
	} {
		w := newWorld(t, memory.New(), &format.Keys{})
		w.put(7)
		w.putFull(change)
		w.requireFailed(w.ofFull(), why)
	}
}

func TestVerify_findsDamagedAndMissingObjects(t *testing.T) {
	s := memory.New()
	w := newWorld(t, s, &format.Keys{})
	w.put(7)
	full := w.putFull()
	name := archive.DataName(1, full.Name())
	content, _ := s.Content(name)
	damaged := append([]byte{}, content...)
	damaged[len(damaged)/2] ^= 1
	s.SetContent(name, damaged)
	w.requireFailed(w.ofFull(), "damaged")
	s.SetContent(name, content[:len(content)/2])
	w.requireFailed(w.ofFull(), "damaged")
	require.NoError(t, s.Delete(t.Context(), name))
	w.requireFailed(w.ofFull(), name)

	require.NoError(t, s.Delete(t.Context(), archive.ManifestName(1, full.Name())))
	_, err := w.verify(w.ofFull())
	require.ErrorIs(t, err, store.ErrNotFound) // the backup was deleted, which is not a result
	require.False(t, isBackupFault(t.Context(), w.Archive, archive.Path{Full: full}, store.ErrNotFound), "deleted while it was verified")
}

func TestVerify_namesTheAlternative(t *testing.T) {
	s := memory.New()
	w := newWorld(t, s, &format.Keys{})
	w.put(7)
	older := w.putFull()
	w.put(5)
	w.putSegment()
	within := w.putFull(func(full *archive.Full) {
		full.Next, full.Chain, full.Last = w.next.Position, w.next.Before, w.next.Last
	})
	require.NoError(t, s.Delete(t.Context(), archive.DataName(1, within.Name())))
	w.requireFailed(w.ofFull(), "; full snapshot "+older.Name()+" also leads to revision 13")
	require.NoError(t, s.Delete(t.Context(), archive.ManifestName(1, within.Name())))
	w.put(4)
	beyond := w.putFull()
	require.NoError(t, s.Delete(t.Context(), archive.DataName(1, beyond.Name())))
	w.requireFailed(w.ofFull(), "; full snapshot "+older.Name()+" leads only to revision 13: 4 revisions are lost")
	require.NoError(t, s.Delete(t.Context(), archive.ManifestName(1, older.Name())))
	w.requireFailed(w.ofFull(), "; no other backup leads to revision 17")
}

func TestVerify_failsWithoutAResult(t *testing.T) {
	pair := formattest.NewKeys(t)
	s := memory.New()
	w := newWorld(t, s, pair.Load(t))
	w.put(7)
	full := w.putFull()
	s.Inject(memory.Fault{Op: memory.Get, Prefix: archive.DataName(1, full.Name()), Err: memory.ErrExpired})
	_, err := w.verify(w.ofFull())
	require.ErrorIs(t, err, store.ErrDenied)
	s.ClearFaults()
	w.Archive = archive.New(s, formattest.LoadKeys(t, format.KeyFiles{Recipients: pair.Recipients, SigningKey: pair.SigningKey}))
	_, err = w.verify(w.ofFull())
	require.ErrorIs(t, err, format.ErrNoIdentity)
}

func TestVerify_emptiesTheScratchDirectory(t *testing.T) {
	w := newWorld(t, memory.New(), &format.Keys{})
	w.put(7)
	w.putFull()
	scratch := filepath.Join(t.TempDir(), "scratch")
	require.NoError(t, os.MkdirAll(scratch, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(scratch, "db"), []byte("of one that was killed"), 0o600))
	result, err := Verify(t.Context(), w.Archive, w.ofFull(), scratch)
	require.NoError(t, err)
	require.Equal(t, archive.Verified, result.Outcome)
	require.NoDirExists(t, scratch)
}

// In the tests below the backup equals etcd's database, which was already damaged.

func withoutHash(full *archive.Full) { full.Hash = nil }

// bbolt panics in its own goroutine.
func TestVerify_survivesPanicsOfBbolt(t *testing.T) {
	url := "file://" + t.TempDir()
	s, err := locate.Open(url)
	require.NoError(t, err)
	w := newWorld(t, s, &format.Keys{})
	w.put(60) // more than fits on the page above, where bbolt does not check
	w.decay = func(database []byte) []byte {
		for at := bytes.Index(database, revisionKey(5)); at >= 0; at = bytes.Index(database, revisionKey(5)) {
			copy(database[at:], revisionKey(900)) // which is greater than the keys that follow it
		}
		return database
	}
	full := w.putFull(withoutHash)
	path := archive.Path{Full: full, Revision: full.Revision}
	result, err := inChild("child-verify", url, filepath.Join(t.TempDir(), "scratch"))(t.Context(), path)
	require.NoError(t, err)
	require.Equal(t, archive.Failed, result.Outcome)
	require.Contains(t, result.Why, "restoring it crashed: panic: freepages: failed to get all reachable pages")
}

func revisionKey(revision int64) []byte {
	return mvcc.RevToBytes(mvcc.Revision{Main: revision}, mvcc.NewRevBytes())
}

func TestVerify_findsUnreadablePages(t *testing.T) {
	w := newWorld(t, memory.New(), &format.Keys{})
	w.put(7)
	w.decay = func(database []byte) []byte {
		clear(database[2*os.Getpagesize():]) // all pages but the two that bbolt reads first
		return database
	}
	w.putFull(withoutHash)
	w.requireFailed(w.ofFull(), "the backup is damaged: its database cannot be read")
}

func TestVerify_findsUnreachablePages(t *testing.T) {
	w := newWorld(t, memory.New(), &format.Keys{})
	w.put(7)
	w.decay = func(database []byte) []byte { return withoutFreelist(t, database) }
	w.putFull(withoutHash)
	w.requireFailed(w.ofFull(), "bbolt's page check found ")
}

// withoutFreelist returns a database that should record its free pages, with free pages that the list lacks.
func withoutFreelist(t *testing.T, database []byte) []byte {
	path := filepath.Join(t.TempDir(), "db")
	require.NoError(t, os.WriteFile(path, database, 0o600))
	db, err := bolt.Open(path, 0, &bolt.Options{NoSync: true}) // without NoFreelistSync, so it writes the list
	require.NoError(t, err)
	require.NoError(t, db.Close())
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	const flags, count, isFreelist = 8, 10, 0x10 // offsets in the header of a page, and a flag
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
