package backup_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup"
	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/archivetest"
	"etcd-wrapper/backup/facts"
	"etcd-wrapper/backup/format"
	. "etcd-wrapper/backup/format/formattest"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
	"etcd-wrapper/backup/writer"
	"etcd-wrapper/cmd/suites/etcdtest"
	"etcd-wrapper/internal/disk"
)

// stuck is a store that hangs and ignores its context, like a network file system whose server is unreachable.
type stuck struct {
	store.Store
	hangs   atomic.Bool
	waiting atomic.Int32 // how many hang
	release chan struct{}
}

func (s *stuck) Put(ctx context.Context, name string, content io.Reader) error {
	if s.hangs.Load() {
		s.waiting.Add(1)
		<-s.release
	}
	return s.Store.Put(ctx, name, content)
}

// closedBehind makes backups, ends them, and closes etcd with something that the store has not.
func (s *subject) closedBehind(t *testing.T, before func()) {
	t.Helper()
	s.start(t)
	before()
	s.end(t)
	s.put(t, 10)
	s.etcd.Server.Stop()
}

func TestFlush_endsWithItsContextIfTheStoreHangs(t *testing.T) {
	hanging := &stuck{Store: memory.New(), release: make(chan struct{})}
	t.Cleanup(func() { close(hanging.release) })
	s := newSubjectIn(t, hanging, archive.Verified)
	s.closedBehind(t, func() {})
	hanging.hangs.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- s.Flush(ctx, s.database()) }()
	select {
	case err := <-done:
		require.ErrorContains(t, err, "does not answer")
	case <-soon(t).Done():
		require.Fail(t, "the stop hangs with the store")
	}
}

func TestFlush_copiesTheDatabaseUntilItsContextEnds(t *testing.T) {
	slow := memory.New()
	slow.Inject(memory.Fault{Op: memory.Put, Prefix: "gen/000001/full/", Hang: true})
	s := newSubjectIn(t, slow, archive.Verified)
	s.put(t, 10)
	s.Begin(writer.Server(s.etcd.Server), s.dir, "")
	s.stop(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	err := s.Flush(ctx, s.database())
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "stores the copy", "what took the time is said")
}

func TestFlush_waitsOnlyBrieflyForAStoreThatHadAProblem(t *testing.T) {
	for _, recovered := range []bool{false, true} {
		in := memory.New()
		s := newSubjectIn(t, in, archive.Verified)
		s.closedBehind(t, func() {
			in.Inject(memory.Fault{Err: &store.Unavailable{}})
			s.put(t, 1)
			s.eventually(t, func(f backup.Facts) bool { return f.Shipped.Problem != nil }, "a problem")
		})
		if !recovered {
			require.ErrorContains(t, s.Flush(soon(t), s.database()), "has not recovered from an earlier problem")
			continue
		}
		in.ClearFaults()
		require.NoError(t, s.Flush(soon(t), s.database()))
		require.Equal(t, int64(12), s.stored(t))
	}
}

func TestFlush_waitsForAnUploadInProgress(t *testing.T) {
	slow := &stuck{Store: memory.New(), release: make(chan struct{})}
	s := newSubjectIn(t, slow, archive.Verified)
	s.start(t)
	slow.hangs.Store(true)
	s.put(t, 1)
	s.eventually(t, func(backup.Facts) bool { return slow.waiting.Load() > 0 }, "an upload that hangs")
	atOnce, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorContains(t, s.End(atOnce), "has not answered in time")
	s.put(t, 10)
	s.etcd.Server.Stop()
	var together atomic.Int32
	time.AfterFunc(200*time.Millisecond, func() {
		together.Store(slow.waiting.Load())
		close(slow.release)
	})
	require.NoError(t, s.Flush(soon(t), s.database()))
	require.EqualValues(t, 1, together.Load(), "nothing is begun beside what has not ended")
	require.Equal(t, int64(12), s.stored(t))
}

// A process that was killed ends when it gets a processor, which others may keep busy.
func TestFlush_doesNotWaitForARestoreTest(t *testing.T) {
	s := newSubject(t, archive.Verified)
	begun, release := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(release) })
	s.proof.before = func() {
		close(begun)
		<-release
	}
	s.closedBehind(t, func() { <-begun })
	require.NoError(t, s.Flush(soon(t), s.database()))
	require.Equal(t, int64(11), s.stored(t))
}

// In a rolling restart the other members continue while one is closed, even the writer.
func TestFlush_leavesTheRestToTheOtherMembers(t *testing.T) {
	s := newSubject(t, archive.Verified)
	s.closedBehind(t, func() {})
	require.NoError(t, s.Flush(soon(t), s.database()))
	older := s.database() + ".older" // as the member that stops first has it
	content, err := os.ReadFile(s.database())
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(older, content, 0o600))

	s.etcd = etcdtest.Start(t, s.dir)
	s.Backups = s.another(t, &format.Keys{})
	s.beginUntil(t, func(f backup.Facts) bool { return f.Shipped.Role == facts.Writer }, "it writes")
	s.end(t)
	others := s.another(t, &format.Keys{})
	others.Begin(writer.Server(s.etcd.Server), s.dir, "")
	s.put(t, 10)
	require.Eventually(t, func() bool { return others.Facts().Shipped.Revision == s.etcd.Revision() }, etcdtest.Patience, 5*time.Millisecond)
	require.NoError(t, others.End(soon(t)))
	require.ErrorIs(t, s.Flush(soon(t), older), writer.ErrRowsOnly)
}

func TestFlush_reportsThatBackupsHaveNotStarted(t *testing.T) {
	require.ErrorIs(t, newSubject(t, archive.Verified).Flush(soon(t), "nowhere"), backup.ErrNotRunning)
}

// A store that takes two seconds for each answer is to be done with in a stop's budget.
func TestFlush_sendsFewRequests(t *testing.T) {
	kept := memory.New()
	s := newSubjectIn(t, kept, archive.Verified)
	s.closedBehind(t, func() { s.put(t, 1) })
	before := len(kept.Calls())
	require.NoError(t, s.Flush(soon(t), s.database()))
	asked := kept.Calls()[before:]
	require.LessOrEqual(t, len(asked), 12, "%v", asked) // 23, if everything had to be found out again
	require.Equal(t, int64(12), s.stored(t))
}

// Leases and users may exist before the first key.
func TestFlush_uploadsALeaseOfAnEtcdWithoutKeys(t *testing.T) {
	s := newSubjectIn(t, memory.New(), archive.Verified)
	s.start(t)
	s.end(t)
	_, err := s.etcd.Client.Grant(t.Context(), 600)
	require.NoError(t, err)
	s.etcd.Server.Stop()
	require.NoError(t, s.Flush(soon(t), s.database()))
	in := archive.New(s.store, &format.Keys{})
	head, err := in.Head(t.Context(), 1)
	require.NoError(t, err)
	require.True(t, head.Newest().Released, "nobody need wait to see whether this cluster lives")
	path, err := in.Find(t.Context(), archive.Target{})
	require.NoError(t, err)
	reading, err := in.Read(t.Context(), path, func(format.Row) error { return nil })
	require.NoError(t, err)
	require.True(t, slices.ContainsFunc(reading.Buckets, func(b *format.Bucket) bool { return b.Name == "lease" && b.Len() == 1 }))
}

// Leases and users change no revision, so the last revision does not show that they are new.
func TestFlushAtRest_uploadsALeaseWithoutANewRevision(t *testing.T) {
	s := newSubjectIn(t, memory.New(), archive.Verified)
	s.start(t)
	s.end(t)
	_, err := s.etcd.Client.Grant(t.Context(), 600)
	require.NoError(t, err)
	member, cluster := uint64(s.etcd.Server.MemberID()), uint64(s.etcd.Server.Cluster().ID())
	s.etcd.Server.Stop()
	again := s.another(t, &format.Keys{})
	require.NoError(t, again.FlushAtRest(soon(t), s.dir, member, cluster))
	in := archive.New(s.store, &format.Keys{})
	head, err := in.Head(t.Context(), 1)
	require.NoError(t, err)
	require.NotNil(t, head.Segment)
	require.Contains(t, head.Segment.Buckets, "lease")
	require.Empty(t, names(t, filepath.Join(filepath.Dir(s.dir), "spool")), "what the store has would be taken for other data's after the restore")
	require.NoError(t, again.FlushAtRest(soon(t), s.dir, member, cluster), "and once more, when the store has all of it")
}

// waiting is a spool with segments of the revisions 11 to 13, 14 to 16 and 17 to 19, and a store that ends at revision 10.
type waiting struct {
	*testing.T
	*backup.Backups
	store   *memory.Store
	archive *archive.Archive
	dir     string
	objects []format.Object
	log     bytes.Buffer
}

var unsealed = &format.Keys{}

func newWaiting(t *testing.T) *waiting {
	t.Helper()
	w := &waiting{T: t, store: memory.New(), dir: filepath.Join(t.TempDir(), "spool")}
	w.archive = archive.New(w.store, unsealed)
	w.Backups = backup.New(backup.Options{Store: w.store, Keys: unsealed, SpoolDir: w.dir, SpoolLimit: 1 << 20, Log: zerolog.New(&w.log)})
	w.found("c")
	start := format.Start{Cluster: "c", Generation: 1, Position: format.After(10), Before: format.Seed("c", 1, 10)}
	filled, torn, err := writer.OpenSpool(w.dir, 1<<20, unsealed)
	require.NoError(t, err)
	require.Empty(t, torn)
	for last := int64(13); last < 20; last += 3 {
		object := Build(t, unsealed, start, Rows(last-2, last), Bucket("lease", "l", "1"))
		require.NoError(t, filled.Put(object, true))
		w.objects, start = append(w.objects, object), object.Start()
	}
	return w
}

// found creates the cluster in the store, with a full snapshot.
func (w *waiting) found(cluster string) {
	w.Helper()
	_, err := w.archive.Create(w.Context(), archive.Cluster{Cluster: cluster, Created: Noon}, 1)
	require.NoError(w, err)
	_, err = archivetest.PutFull(w.Context(), w.archive, archive.Full{
		Cluster: cluster, Generation: 1, Revision: 10, Chain: format.Seed(cluster, 1, 10), Time: Noon, Reason: "asked for",
	}, strings.NewReader("database"))
	require.NoError(w, err)
}

func (w *waiting) head() archive.Head {
	w.Helper()
	head, err := w.archive.Head(w.Context(), 1)
	require.NoError(w, err)
	return head
}

func (w *waiting) flush() error { return w.FlushSpool(w.Context(), archive.Identity{}, 0) }

// requireLeft requires that the given segments are in the spool and in its preserved copies.
func (w *waiting) requireLeft(waits, moved []format.Object) {
	w.Helper()
	here, there := names(w.T, w.dir), []string(nil)
	for _, kept := range disk.PreservedCopies(w.dir) {
		there = append(there, names(w.T, kept.Path)...)
	}
	require.ElementsMatch(w, positions(waits), here, "in the spool")
	require.ElementsMatch(w, positions(moved), there, "preserved")
}

func names(t *testing.T, dir string) (all []string) {
	t.Helper()
	found, err := os.ReadDir(filepath.Join(dir, "segments"))
	require.NoError(t, err)
	for _, entry := range found {
		all = append(all, entry.Name())
	}
	return all
}

func positions(of []format.Object) (all []string) {
	for _, object := range of {
		all = append(all, object.Position.String())
	}
	return all
}

func (w *waiting) tear(which int) {
	w.Helper()
	path := filepath.Join(w.dir, "segments", w.objects[which].Position.String())
	require.NoError(w, os.Truncate(path, w.objects[which].Size()-1))
}

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
