package backup_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup"
	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/archivetest"
	"etcd-wrapper/backup/format"
	. "etcd-wrapper/backup/format/formattest"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
	"etcd-wrapper/backup/writer"
)

func TestFlushSpool_uploadsAndClearsTheSpool(t *testing.T) {
	w := newWaiting(t)
	require.NoError(t, w.flush())
	assert.Equal(t, int64(19), w.head().Revision())
	w.requireLeft(nil, nil)
	require.NoError(t, w.flush())
}

func TestFlushSpool_leavesSegmentsThatTheDataContains(t *testing.T) {
	w := newWaiting(t)
	require.NoError(t, w.FlushSpool(t.Context(), archive.Identity{Cluster: "c", Generation: 1}, 19))
	require.NoError(t, w.FlushSpool(t.Context(), archive.Identity{Cluster: "d", Generation: 1}, 5), "it is not of these data, which are of use")
	w.requireLeft(w.objects, nil)
	require.NoError(t, w.FlushSpool(t.Context(), archive.Identity{Cluster: "c", Generation: 1}, 18))
	assert.Equal(t, int64(19), w.head().Revision())
}

// The spool may have a gigabyte, and is read again when backups start.
func TestFlushSpool_doesNotReadASpoolThatTheDataContains(t *testing.T) {
	w := newWaiting(t)
	w.tear(0)
	require.NoError(t, w.FlushSpool(t.Context(), archive.Identity{Cluster: "c", Generation: 1}, 19))
	w.requireLeft(w.objects, nil)
	require.NoError(t, w.flush())
	w.requireLeft(nil, w.objects)
}

func TestFlushSpool_continuesAfterAFailure(t *testing.T) {
	w := newWaiting(t)
	w.store.Inject(memory.Fault{Op: memory.Put, Prefix: archive.SegmentName(1, w.objects[1].Position), Times: 1, Err: &store.Unavailable{}})
	require.ErrorIs(t, w.flush(), store.ErrUnavailable)
	assert.Equal(t, int64(13), w.head().Revision())
	w.requireLeft(w.objects, nil)
	require.NoError(t, w.flush())
	assert.Equal(t, int64(19), w.head().Revision())
}

// Another member has stored segments that end elsewhere.
func TestFlushSpool_uploadsTheRestOfAPartlyStoredSegment(t *testing.T) {
	w := newWaiting(t)
	require.NoError(t, archivetest.PutSegment(t.Context(), w.archive, Build(t, unsealed, w.head().Start, Rows(11, 15))))
	require.NoError(t, w.flush())
	head := w.head()
	assert.Equal(t, int64(19), head.Revision())
	assert.Equal(t, w.objects[2].After, head.Before)
	rest, err := w.archive.Manifest(t.Context(), 1, format.After(15))
	require.NoError(t, err)
	assert.Equal(t, int64(16), rest.End)
	assert.Equal(t, []string{"lease"}, rest.Buckets)
	w.requireLeft(nil, nil)
}

func TestFlushSpool_keepsSegmentsOfAnotherHistory(t *testing.T) {
	for name, rows := range map[string][]format.Row{
		"up to the same revision": {Row(11, 0, "another"), Row(13, 0, "another")},
		"up to one within":        {Row(11, 0, "another"), Row(12, 0, "another")},
	} {
		w := newWaiting(t)
		require.NoError(t, archivetest.PutSegment(t.Context(), w.archive, Build(t, unsealed, w.head().Start, rows)))
		require.ErrorContains(t, w.flush(), "they do not continue them", name)
		w.requireLeft(w.objects, nil)
	}
}

// The store was restored from a copy, or has lost its last objects.
func TestFlushSpool_keepsSegmentsThatStartAfterTheEndOfTheBackups(t *testing.T) {
	w := newWaiting(t)
	require.NoError(t, os.Remove(filepath.Join(w.dir, "segments", w.objects[0].Position.String())))
	require.ErrorContains(t, w.flush(), "start at revision 14 of cluster c, and its backups end at revision 10")
	w.requireLeft(w.objects[1:], nil)
}

func TestFlushSpool_keepsSegmentsThatCannotBeCompared(t *testing.T) {
	w := newWaiting(t)
	require.NoError(t, archivetest.PutSegment(t.Context(), w.archive, Build(t, unsealed, w.head().Start, Rows(11, 20))))
	require.NoError(t, w.flush())
	w.requireLeft(w.objects, nil)
}

func TestFlushSpool_clearsStoredSegments(t *testing.T) {
	w := newWaiting(t)
	require.NoError(t, archivetest.PutSegment(t.Context(), w.archive, Build(t, unsealed, w.head().Start, Rows(11, 19))))
	require.NoError(t, w.flush())
	w.requireLeft(nil, nil)
}

func TestFlushSpool_preservesAnUnreadableSegmentAndItsSuccessors(t *testing.T) {
	for which, brought := range []int64{10, 13, 16} {
		w := newWaiting(t)
		left := w.objects
		if which == 2 { // all that can be read is in the store
			left = w.objects[2:]
		}
		w.tear(which)
		require.NoError(t, w.flush())
		assert.Equal(t, brought, w.head().Revision())
		w.requireLeft(nil, left)
		assert.Contains(t, w.log.String(), "unreadable segments in the spool are preserved")
	}
}

func TestFlushSpool_keepsSegmentsForAnotherStore(t *testing.T) {
	w := newWaiting(t)
	for _, founded := range []string{"", "d"} {
		w.store = memory.New()
		w.archive = archive.New(w.store, unsealed)
		w.Backups = backup.New(backup.Options{Store: w.store, Keys: unsealed, SpoolDir: w.dir, SpoolLimit: 1 << 20, Log: zerolog.New(&w.log)})
		if founded != "" {
			w.found(founded)
		}
		w.log.Reset()
		require.NoError(t, w.flush())
		w.requireLeft(w.objects, nil)
		assert.Contains(t, w.log.String(), "is not for this store")
	}
}

func TestFlushSpool_preservesSegmentsOfAnEndedGeneration(t *testing.T) {
	w := newWaiting(t)
	require.NoError(t, archivetest.PutSegment(t.Context(), w.archive, Build(t, unsealed, w.head().Start, []format.Row{Row(11, 0, "another"), Row(13, 0, "another")})))
	require.NoError(t, archivetest.BeginGeneration(t.Context(), w.archive, archive.Generation{Number: 2, Cluster: "d", Parent: 1, ParentRevision: 10, Created: Noon}))
	require.NoError(t, w.flush())
	w.requireLeft(nil, w.objects)
	assert.Contains(t, w.log.String(), "the spool can no longer be uploaded to this store and is preserved")
	assert.Contains(t, w.log.String(), `"from_revision":14`, "revisions 11 to 13 are in the store, and another member's")
}

// The spool is that of a leader that was deposed, and whose successor has changed a lease since.
func TestFlushSpool_skipsOutdatedBuckets(t *testing.T) {
	w := newWaiting(t)
	start := format.Start{Cluster: "c", Generation: 1, Position: format.After(10), Before: format.Seed("c", 1, 10)}
	newer, err := format.NewSegmentBuilder(unsealed, start)
	require.NoError(t, err)
	require.NoError(t, newer.Add(Bucket("lease", "l", "newer")))
	stated, err := newer.Finish(format.Source{Term: 3, Member: "2"})
	require.NoError(t, err)
	require.NoError(t, archivetest.PutSegment(t.Context(), w.archive, stated))

	w.dir = filepath.Join(t.TempDir(), "spool")
	w.Backups = backup.New(backup.Options{Store: w.store, Keys: unsealed, SpoolDir: w.dir, SpoolLimit: 1 << 20, Log: zerolog.New(&w.log)})
	filled, _, err := writer.OpenSpool(w.dir, 1<<20, unsealed)
	require.NoError(t, err)
	for _, rows := range [][]format.Row{nil, nil, Rows(11, 13), nil} {
		object := Build(t, unsealed, start, rows, Bucket("lease", "l", "older"))
		require.NoError(t, filled.Put(object, true))
		start = object.Start()
	}
	require.NoError(t, w.flush())
	assert.Equal(t, format.Position{Revision: 14, Part: 1}, w.head().Position)
	w.requireLeft(nil, nil)
	segments, err := w.archive.Objects(t.Context(), 1, archive.Segment)
	require.NoError(t, err)
	var all []string
	for _, object := range segments {
		all = append(all, object.Start.String())
	}
	assert.Equal(t, []string{format.After(10).String(), format.Position{Revision: 11, Part: 1}.String(), format.After(13).String()}, all)
}

func TestFlushSpool_uploadsNothingUnsignedToASignedStore(t *testing.T) {
	w, made := newWaiting(t), NewKeys(t)
	for _, name := range []string{"cluster.json", archive.GenerationPrefix(1) + "generation.json"} {
		require.NoError(t, w.store.Delete(t.Context(), name))
	}
	_, err := archive.New(w.store, LoadKeys(t, format.KeyFiles{SigningKey: made.SigningKey})).Create(t.Context(), archive.Cluster{Cluster: "c", Created: Noon}, 1)
	require.NoError(t, err)
	require.ErrorIs(t, w.flush(), archive.ErrUnsigned)
	assert.Equal(t, int64(10), w.head().Revision())
	w.requireLeft(w.objects, nil)
}

// Opening the spool takes long if it has many segments, and etcd already serves: a client may compact what no segment has.
func TestBeforeCompaction_waitsForTheSpool(t *testing.T) {
	s := newSubject(t, archive.Verified)
	s.start(t)
	s.put(t, 1)
	s.eventually(t, func(f backup.Facts) bool { return f.Shipped.Revision == s.etcd.Revision() }, "a segment to continue from")
	s.nextRun(t)
	s.put(t, 1)
	spool := filepath.Join(filepath.Dir(s.dir), "spool")
	slow := filepath.Join(spool, "segments", "0")
	require.NoError(t, syscall.Mkfifo(slow, 0o600))
	s.Begin(writer.Server(s.etcd.Server), s.dir, "")
	opened := make(chan error)
	go func() {
		file, err := os.OpenFile(slow, os.O_WRONLY, 0) // once the spool is being opened
		opened <- errors.Join(err, file.Close())
	}()
	s.BeforeCompaction(soon(t))
	last, known := writer.LastSpooled(spool, &format.Keys{})
	assert.True(t, known)
	assert.Equal(t, s.etcd.Revision(), last.End, "what is captured before the compaction")
	require.NoError(t, <-opened)
	s.end(t)
}
