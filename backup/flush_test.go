package backup_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup"
	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/facts"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
	"etcd-wrapper/backup/writer"
	"etcd-wrapper/cmd/suites/etcdtest"
)

// stuck is a store whose uploads can hang. They ignore their context, as on a network file system with an unreachable
// server.
type stuck struct {
	store.Store
	hangs   atomic.Bool   // whether new uploads hang
	waiting atomic.Int32  // number of uploads that have been hanging
	release chan struct{} // closed to let hanging uploads continue
}

func (s *stuck) Put(ctx context.Context, name string, content io.Reader) error {
	if s.hangs.Load() {
		s.waiting.Add(1)
		<-s.release
	}
	return s.Store.Put(ctx, name, content)
}

// closeWithUnstoredWrites starts the backups, calls whileRunning, ends the backups, writes ten more revisions, and
// closes etcd.
func (s *subject) closeWithUnstoredWrites(t *testing.T, whileRunning func()) {
	t.Helper()
	s.start(t)
	whileRunning()
	s.end(t)
	s.put(t, 10)
	s.etcd.Server.Stop()
}

func TestFlush_endsWithItsContextIfTheStoreHangs(t *testing.T) {
	hanging := &stuck{Store: memory.New(), release: make(chan struct{})}
	t.Cleanup(func() { close(hanging.release) })
	s := newSubjectIn(t, hanging, archive.Verified)
	s.closeWithUnstoredWrites(t, func() {})
	hanging.hangs.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- s.Flush(ctx, s.database()) }()
	select {
	case err := <-done:
		require.ErrorContains(t, err, "is not responding")
	case <-soon(t).Done():
		require.Fail(t, "Flush hangs")
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
	require.ErrorContains(t, err, "uploading", "the error names the step")
}

func TestFlush_waitsOnlyBrieflyForAStoreThatHadAProblem(t *testing.T) {
	for _, recovered := range []bool{false, true} {
		in := memory.New()
		s := newSubjectIn(t, in, archive.Verified)
		s.closeWithUnstoredWrites(t, func() {
			in.Inject(memory.Fault{Err: &store.Unavailable{}})
			s.put(t, 1)
			s.eventually(t, func(f backup.Facts) bool { return f.Writer.Problem != nil }, "the problem is reported")
		})
		if !recovered {
			require.ErrorContains(t, s.Flush(soon(t), s.database()), "has not recovered from an earlier failure")
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
	s.eventually(t, func(backup.Facts) bool { return slow.waiting.Load() > 0 }, "an upload hangs")
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorContains(t, s.End(canceled), "timed out waiting for the store")
	s.put(t, 10)
	s.etcd.Server.Stop()
	var uploads atomic.Int32
	time.AfterFunc(200*time.Millisecond, func() {
		uploads.Store(slow.waiting.Load())
		close(slow.release)
	})
	require.NoError(t, s.Flush(soon(t), s.database()))
	require.EqualValues(t, 1, uploads.Load(), "Flush starts no upload before the first one has finished")
	require.Equal(t, int64(12), s.stored(t))
}

// Flush must not wait for a killed restore test, because the test's process can take seconds to exit on a busy
// machine.
func TestFlush_doesNotWaitForARestoreTest(t *testing.T) {
	s := newSubject(t, archive.Verified)
	started, release := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(release) })
	s.verifier.before = func() {
		close(started)
		<-release
	}
	s.closeWithUnstoredWrites(t, func() { <-started })
	require.NoError(t, s.Flush(soon(t), s.database()))
	require.Equal(t, int64(11), s.stored(t))
}

func TestFlush_leavesTheRestToTheOtherMembers(t *testing.T) {
	s := newSubject(t, archive.Verified)
	s.closeWithUnstoredWrites(t, func() {})
	require.NoError(t, s.Flush(soon(t), s.database()))
	older := s.dir + ".older" // simulates the data directory of a member that stopped before the others
	require.NoError(t, os.CopyFS(older, os.DirFS(s.dir)))

	s.etcd = etcdtest.Start(t, s.dir)
	s.nextRun(t)
	s.beginUntil(t, func(f backup.Facts) bool { return f.Writer.Role == facts.Writer }, "the member is the writer")
	s.end(t)
	others := s.newBackups(t, &format.Keys{})
	others.Begin(writer.Server(s.etcd.Server), s.dir, "")
	s.put(t, 10)
	require.Eventually(t, func() bool { return others.Facts().Writer.Revision == s.etcd.Revision() }, etcdtest.Patience, 5*time.Millisecond)
	require.NoError(t, others.End(soon(t)))
	require.ErrorIs(t, s.Flush(soon(t), filepath.Join(older, "member", "snap", "db")), writer.ErrRowsOnly)
	member, cluster := uint64(s.etcd.Server.MemberID()), uint64(s.etcd.Server.Cluster().ID())
	err := s.newBackups(t, &format.Keys{}).FlushAtRest(soon(t), older, member, cluster)
	require.ErrorIs(t, err, writer.ErrNotWriter, "ErrRowsOnly requires that a running etcd matched the store")
}

func TestFlush_reportsThatBackupsHaveNotStarted(t *testing.T) {
	require.ErrorIs(t, newSubject(t, archive.Verified).Flush(soon(t), "nowhere"), backup.ErrNotRunning)
}

// A shutdown must finish in time even if the store takes two seconds per request.
func TestFlush_sendsFewRequests(t *testing.T) {
	in := memory.New()
	s := newSubjectIn(t, in, archive.Verified)
	s.closeWithUnstoredWrites(t, func() { s.put(t, 1) })
	before := len(in.Calls())
	require.NoError(t, s.Flush(soon(t), s.database()))
	calls := in.Calls()[before:]
	require.LessOrEqual(t, len(calls), 12, "%v", calls) // would be 23 if the second writer inspected the store again
	require.Equal(t, int64(12), s.stored(t))
}

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
	require.True(t, head.Newest().Released, "the final object of a clean shutdown is stored")
	path, err := in.Find(t.Context(), archive.Target{})
	require.NoError(t, err)
	reading, err := in.Read(t.Context(), path, func(format.Row) error { return nil })
	require.NoError(t, err)
	require.True(t, slices.ContainsFunc(reading.Buckets, func(b *format.Bucket) bool { return b.Name == "lease" && b.Len() == 1 }))
}

func TestFlushAtRest_uploadsALeaseWithoutANewRevision(t *testing.T) {
	s := newSubjectIn(t, memory.New(), archive.Verified)
	s.start(t)
	s.end(t)
	_, err := s.etcd.Client.Grant(t.Context(), 600)
	require.NoError(t, err)
	member, cluster := uint64(s.etcd.Server.MemberID()), uint64(s.etcd.Server.Cluster().ID())
	s.etcd.Server.Stop()
	again := s.newBackups(t, &format.Keys{})
	require.NoError(t, again.FlushAtRest(soon(t), s.dir, member, cluster))
	in := archive.New(s.store, &format.Keys{})
	head, err := in.Head(t.Context(), 1)
	require.NoError(t, err)
	require.NotNil(t, head.Segment)
	require.Contains(t, head.Segment.Buckets, "lease")
	require.Empty(t, names(t, filepath.Join(filepath.Dir(s.dir), "spool")), "a restore would preserve segments in the spool")
	require.NoError(t, again.FlushAtRest(soon(t), s.dir, member, cluster), "the second call has nothing to upload")
}

// If a client requests a compaction while the spool is still being opened, BeforeCompaction must wait until the
// revisions are in a segment.
func TestBeforeCompaction_waitsForTheSpool(t *testing.T) {
	s := newSubject(t, archive.Verified)
	s.start(t)
	s.put(t, 1)
	s.eventually(t, func(f backup.Facts) bool {
		return f.Writer.Revision == s.etcd.Revision()
	}, "a segment is stored, from which the next run can continue")
	s.nextRun(t)
	s.put(t, 1)
	spool := filepath.Join(filepath.Dir(s.dir), "spool")
	slow := filepath.Join(spool, "segments", "0")
	require.NoError(t, syscall.Mkfifo(slow, 0o600))
	s.Begin(writer.Server(s.etcd.Server), s.dir, "")
	opened := make(chan error)
	go func() {
		file, err := os.OpenFile(slow, os.O_WRONLY, 0) // blocks until OpenSpool reads the named pipe
		opened <- errors.Join(err, file.Close())
	}()
	s.BeforeCompaction(soon(t))
	last, known := writer.LastSpooled(spool, &format.Keys{})
	assert.True(t, known)
	assert.Equal(t, s.etcd.Revision(), last.End, "BeforeCompaction has captured all revisions")
	require.NoError(t, <-opened)
}
