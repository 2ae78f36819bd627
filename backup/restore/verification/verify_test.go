package verification

import (
	"bytes"
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/archivetest"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/format/formattest"
	"etcd-wrapper/backup/restore/restoretest"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/locate"
	"etcd-wrapper/backup/store/memory"
	"etcd-wrapper/bootstrap/datadir/datadirtest"
)

func TestVerify_fullSnapshot(t *testing.T) {
	w := newFixture(t, memory.New(), formattest.NewKeys(t).Load(t))
	w.put(7)
	w.compact()
	w.put(6)
	full := w.putFull()
	result := w.requireVerified(w.fullJob())
	require.Equal(t, full.Hash, result.Hash)
	require.Equal(t, full.Database, result.Database)
	require.False(t, result.Segments)
	require.Positive(t, result.Seconds)
	require.NoError(t, w.PutResult(t.Context(), result))
	history, err := w.History(t.Context())
	require.NoError(t, err)
	require.Equal(t, archive.Verified, history.Newest().Fulls[0].Result.Outcome)
}

func TestVerify_withoutAUsableHash(t *testing.T) {
	for what, put := range map[string]func(w *fixture){
		"no hash": func(w *fixture) { w.putFull(withoutHash) },
		// etcd returns the hash that was recorded during the compaction at that revision, and those rows no longer
		// exist.
		"hash of deleted rows": func(w *fixture) {
			w.compact()
			full := w.putFull()
			require.Less(t, full.Hash.Compacted, full.Compacted)
		},
	} {
		w := newFixture(t, memory.New(), &format.Keys{})
		w.put(7)
		put(w)
		require.Nil(t, w.requireVerified(w.fullJob()).Hash, what)
	}
}

func TestVerify_comparesTheNewestCompactionHash(t *testing.T) {
	w := newFixture(t, memory.New(), &format.Keys{})
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
	result := w.requireVerified(w.job(w.next.Position.Revision - 4)) // a revision before the last compaction
	require.True(t, result.Segments)
	require.Equal(t, compacted, result.Hash.Revision)
	require.Equal(t, w.full.Name(), result.Full)
	result = w.requireVerified(w.job(w.next.Position.Revision - 1))
	require.Equal(t, w.hashed, result.Hash.Revision)
	require.NoError(t, w.PutResult(t.Context(), result))
}

// All digests match, so only etcd's own hash reveals that the rows are wrong.
func TestVerify_findsWrongRows(t *testing.T) {
	w := newFixture(t, memory.New(), &format.Keys{})
	w.put(4)
	w.putFull()
	w.alter = func(row *format.Row) { row.Value[len(row.Value)-1]++ }
	w.put(8)
	w.putSegment()
	w.compact()
	w.put(2)
	w.putSegment()
	w.requireFailed(w.job(w.next.Position.Revision-1), "hash at revision 13 (compacted at 0) is ")
}

func TestVerify_findsAWrongManifest(t *testing.T) {
	for why, change := range map[string]func(*archive.Full){
		"last revision is 8, expected 9":      func(full *archive.Full) { full.Revision++; full.Hash = nil },
		"but etcd recorded ":                  func(full *archive.Full) { full.Hash.Hash++ },
		"revision is newer than the database": func(full *archive.Full) { full.Hash.Revision += 50 },
	} {
		w := newFixture(t, memory.New(), &format.Keys{})
		w.put(7)
		w.putFull(change)
		w.requireFailed(w.fullJob(), why)
	}
}

func TestVerify_findsDamagedAndMissingObjects(t *testing.T) {
	s := memory.New()
	w := newFixture(t, s, &format.Keys{})
	w.put(7)
	full := w.putFull()
	name := archive.DataName(1, full.Name())
	content, _ := s.Content(name)
	damaged := append([]byte{}, content...)
	damaged[len(damaged)/2] ^= 1
	s.SetContent(name, damaged)
	w.requireFailed(w.fullJob(), "damaged")
	s.SetContent(name, content[:len(content)/2])
	w.requireFailed(w.fullJob(), "damaged")
	require.NoError(t, s.Delete(t.Context(), name))
	w.requireFailed(w.fullJob(), name)

	require.NoError(t, s.Delete(t.Context(), archive.ManifestName(1, full.Name())))
	_, err := w.verify(w.fullJob())
	require.ErrorIs(t, err, store.ErrNotFound) // a deleted backup does not count as a failed verification
	require.False(t, isBackupFault(t.Context(), w.Archive, archive.Path{Full: full}, store.ErrNotFound), "a backup that was deleted in the meantime is not faulty")
}

func TestVerify_namesTheAlternative(t *testing.T) {
	s := memory.New()
	w := newFixture(t, s, &format.Keys{})
	w.put(7)
	older := w.putFull()
	w.put(5)
	w.putSegment()
	within := w.putFull(func(full *archive.Full) {
		full.Next, full.Chain, full.Last = w.next.Position, w.next.Before, w.next.Last
	})
	require.NoError(t, s.Delete(t.Context(), archive.DataName(1, within.Name())))
	w.requireFailed(w.fullJob(), "; full snapshot "+older.Name()+" can also restore revision 13")
	require.NoError(t, s.Delete(t.Context(), archive.ManifestName(1, within.Name())))
	w.put(4)
	beyond := w.putFull()
	require.NoError(t, s.Delete(t.Context(), archive.DataName(1, beyond.Name())))
	w.requireFailed(w.fullJob(), "; full snapshot "+older.Name()+" restores only up to revision 13 (revisions lost: 4)")
	require.NoError(t, s.Delete(t.Context(), archive.ManifestName(1, older.Name())))
	w.requireFailed(w.fullJob(), "; no other backup contains revision 17")
}

func TestVerify_failsWithoutAResult(t *testing.T) {
	pair := formattest.NewKeys(t)
	s := memory.New()
	w := newFixture(t, s, pair.Load(t))
	w.put(7)
	full := w.putFull()
	s.Inject(memory.Fault{Op: memory.Get, Prefix: archive.DataName(1, full.Name()), Err: memory.ErrExpired})
	_, err := w.verify(w.fullJob())
	require.ErrorIs(t, err, store.ErrDenied)
	s.ClearFaults()
	w.Archive = archive.New(s, formattest.LoadKeys(t, format.KeyFiles{Recipients: pair.Recipients, SigningKey: pair.SigningKey}))
	_, err = w.verify(w.fullJob())
	require.ErrorIs(t, err, format.ErrNoIdentity)
}

func TestVerify_emptiesTheScratchDirectory(t *testing.T) {
	w := newFixture(t, memory.New(), &format.Keys{})
	w.put(7)
	w.putFull()
	scratch := filepath.Join(t.TempDir(), "scratch")
	require.NoError(t, os.MkdirAll(scratch, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(scratch, "db"), []byte("left by a killed process"), 0o600))
	result, err := Verify(t.Context(), w.Archive, w.fullJob(), scratch)
	require.NoError(t, err)
	require.Equal(t, archive.Verified, result.Outcome)
	require.NoDirExists(t, scratch)
}

// In the following tests, the backup is identical to etcd's database, which was already damaged.

func withoutHash(full *archive.Full) { full.Hash = nil }

// bbolt panics in a separate goroutine, so only a child process can contain the panic.
func TestVerify_survivesPanicsOfBbolt(t *testing.T) {
	url := "file://" + t.TempDir()
	s, err := locate.Open(url)
	require.NoError(t, err)
	w := newFixture(t, s, &format.Keys{})
	w.put(60) // enough rows for a page below the root, which bbolt does not check
	w.corrupt = func(database []byte) []byte {
		for at := bytes.Index(database, revisionKey(5)); at >= 0; at = bytes.Index(database, revisionKey(5)) {
			copy(database[at:], revisionKey(900)) // greater than the following keys
		}
		return database
	}
	full := w.putFull(withoutHash)
	path := archive.Path{Full: full, Revision: full.Revision}
	result, err := inChild("child-verify", url, filepath.Join(t.TempDir(), "scratch"))(t.Context(), path)
	require.NoError(t, err)
	require.Equal(t, archive.Failed, result.Outcome)
	require.Contains(t, result.Why, "the restore crashed: panic: freepages: failed to get all reachable pages")
}

func revisionKey(revision int64) []byte {
	return mvcc.RevToBytes(mvcc.Revision{Main: revision}, mvcc.NewRevBytes())
}

func TestVerify_findsDamagedPages(t *testing.T) {
	for why, corrupt := range map[string]func(database []byte) []byte{
		"the backup is damaged: cannot read the database": func(database []byte) []byte {
			clear(database[2*os.Getpagesize():]) // keeps the two meta pages, which bbolt reads first
			return database
		},
		"bbolt page check failed (number of errors: ": func(database []byte) []byte { return withoutFreelist(t, database) },
	} {
		w := newFixture(t, memory.New(), &format.Keys{})
		w.put(7)
		w.corrupt = corrupt
		w.putFull(withoutHash)
		w.requireFailed(w.fullJob(), why)
	}
}

// withoutFreelist returns a database with an empty freelist page, so that bbolt's check reports the free pages as
// unreachable.
func withoutFreelist(t *testing.T, database []byte) []byte {
	path := filepath.Join(t.TempDir(), "db")
	require.NoError(t, os.WriteFile(path, database, 0o600))
	db, err := bolt.Open(path, 0, &bolt.Options{NoSync: true}) // NoFreelistSync is off, so bbolt writes the freelist
	require.NoError(t, err)
	require.NoError(t, db.Close())
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	const flags, count, isFreelist = 8, 10, 0x10 // offsets in the page header, and a page flag
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

const cluster = "cdf818194e3a8c32"

// fixture contains an etcd server and an archive.
type fixture struct {
	*archive.Archive
	t       *testing.T
	server  *embed.Etcd
	client  *clientv3.Client
	full    archive.Full
	next    format.Start
	alter   func(*format.Row)            // changes rows to simulate a faulty writer
	corrupt func(database []byte) []byte // changes the database to simulate a faulty disk
	hashed  int64                        // revision of the newest compaction with a hash in the archive
}

func newFixture(t *testing.T, s store.Store, keys *format.Keys) *fixture {
	server, err := datadirtest.Start(filepath.Join(t.TempDir(), "live.etcd"))
	require.NoError(t, err)
	t.Cleanup(server.Close)
	w := &fixture{Archive: archive.New(s, keys), t: t, server: server, client: v3client.New(server.Server), alter: func(*format.Row) {}, corrupt: bytes.Clone}
	_, err = w.Create(t.Context(), archive.Cluster{Cluster: cluster, Created: time.Now()}, 1)
	require.NoError(t, err)
	return w
}

func (w *fixture) put(times int) {
	for i := range times {
		_, err := w.client.Put(w.t.Context(), string(rune('a'+i%5)), "value")
		require.NoError(w.t, err)
	}
}

// compact compacts at the current revision.
func (w *fixture) compact() {
	_, err := w.client.Compact(w.t.Context(), w.server.Server.KV().Rev(), clientv3.WithCompactPhysical())
	require.NoError(w.t, err)
}

// putFull stores a full snapshot that starts a chain.
func (w *fixture) putFull(change ...func(*archive.Full)) archive.Full {
	var content bytes.Buffer
	snapshot := w.server.Server.Backend().Snapshot()
	_, err := snapshot.WriteTo(&content)
	require.NoError(w.t, err)
	require.NoError(w.t, snapshot.Close())
	revision := w.server.Server.KV().Rev()
	hash, _, err := w.server.Server.KV().HashStorage().HashByRev(revision)
	require.NoError(w.t, err)
	full := archive.Full{
		Cluster: cluster, Generation: 1, Revision: revision, Time: time.Now(), Reason: "for a test", Chain: format.Seed(cluster, 1, revision),
		Hash: &format.Hash{Revision: hash.Revision, Compacted: hash.CompactRevision, Hash: hash.Hash}, Compacted: max(w.server.Server.KV().FirstRev(), 0),
	}
	for _, change := range change {
		change(&full)
	}
	w.full, err = archivetest.PutFull(w.t.Context(), w.Archive, full, bytes.NewReader(w.corrupt(content.Bytes())))
	require.NoError(w.t, err)
	w.next = w.full.Start()
	return w.full
}

// putSegment stores the changes since the last object and the hashes of compactions.
func (w *fixture) putSegment() {
	tx := w.server.Server.Backend().ConcurrentReadTx()
	tx.RLock()
	first := mvcc.RevToBytes(mvcc.Revision{Main: w.next.Position.Revision}, mvcc.NewRevBytes())
	last := mvcc.RevToBytes(mvcc.Revision{Main: math.MaxInt64}, mvcc.NewRevBytes())
	keys, values := tx.UnsafeRange(schema.Key, first, last, 0)
	tx.RUnlock()
	builder, err := format.NewSegmentBuilder(w.Keys(), w.next)
	require.NoError(w.t, err)
	for i := range keys {
		row := format.Row{Key: bytes.Clone(keys[i]), Value: bytes.Clone(values[i])}
		w.alter(&row)
		require.NoError(w.t, builder.Add(&row))
	}
	require.NoError(w.t, builder.Add(&format.Marker{Revision: builder.End(), Time: formattest.TimeAt(builder.End())}))
	for _, hash := range w.server.Server.KV().HashStorage().Hashes() {
		if hash.Revision > w.hashed {
			require.NoError(w.t, builder.Add(&format.Hash{Revision: hash.Revision, Compacted: max(hash.CompactRevision, 0), Hash: hash.Hash}))
			w.hashed = hash.Revision
		}
	}
	object, err := builder.Finish(format.Source{Compacted: max(w.server.Server.KV().FirstRev(), 0), Term: 2, Member: "8e9e05c52164694d"})
	require.NoError(w.t, err)
	require.NoError(w.t, archivetest.PutSegment(w.t.Context(), w.Archive, object))
	w.next = object.Start()
}

// fullJob returns a job that restores only the full snapshot.
func (w *fixture) fullJob() Job { return w.job(w.full.Revision) }

func (w *fixture) job(revision int64) Job {
	return Job{Generation: 1, Full: w.full.Name(), Revision: revision}
}

// verify runs a verification and requires that the scratch directory is removed.
func (w *fixture) verify(job Job) (archive.Result, error) {
	scratch := filepath.Join(w.t.TempDir(), "scratch")
	result, err := Verify(w.t.Context(), w.Archive, job, scratch)
	require.NoDirExists(w.t, scratch)
	return result, err
}

func (w *fixture) requireVerified(job Job) archive.Result {
	w.t.Helper()
	result, err := w.verify(job)
	require.NoError(w.t, err)
	require.Equal(w.t, archive.Verified, result.Outcome, result.Why)
	return result
}

func (w *fixture) requireFailed(job Job, why string) {
	w.t.Helper()
	result, err := w.verify(job)
	require.NoError(w.t, err)
	require.Equal(w.t, archive.Failed, result.Outcome)
	require.Contains(w.t, result.Why, why)
}

// keepFull stores a full snapshot with rows of about 1 KB and a wrong hash, and returns the size of the database in
// bytes.
func keepFull(t *testing.T, url string, rows int64) (full archive.Full, bytes int64) {
	t.Helper()
	s, err := locate.Open(url)
	require.NoError(t, err)
	a, path := archive.New(s, &format.Keys{}), filepath.Join(t.TempDir(), "full")
	_, err = a.Create(t.Context(), archive.Cluster{Cluster: cluster, Created: time.Now()}, 1)
	require.NoError(t, err)
	source := restoretest.Full(t, path, rows, 900)
	require.NoError(t, os.Truncate(path, source.DatabaseBytes))
	database, err := os.Open(path)
	require.NoError(t, err)
	defer database.Close()
	full, err = archivetest.PutFull(t.Context(), a, archive.Full{
		Cluster: cluster, Generation: 1, Revision: rows, Time: time.Now(), Reason: "for a test", Chain: format.Seed(cluster, 1, rows),
		Hash: &format.Hash{Revision: rows, Compacted: rows / 2},
	}, database)
	require.NoError(t, err)
	return full, source.DatabaseBytes
}
