package writer

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/storage/backend"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
	"etcd-wrapper/backup/writer/capture"
	"etcd-wrapper/cmd/suites/etcdtest"
	"etcd-wrapper/internal/logtest"
	"etcd-wrapper/member/maintenance"
)

const (
	patience = etcdtest.Patience / 3
	poll     = 5 * time.Millisecond
)

var keys = &format.Keys{}

// clusterID is the default cluster ID of the data.
const clusterID = "0a1b2c3d4e5f60718293a4b5c6d7e8f9"

// harness connects a real etcd to an in-memory store through a writer.
type harness struct {
	*testing.T
	etcd    *etcdtest.Etcd
	store   *memory.Store
	log     *logtest.Lines
	options Options           // options of the next writer; Archive defaults to the archive in store
	tune    []func(w *Writer) // functions that change each writer before it starts
	*Writer
	superseded chan error // receives the reason with which the writer requests that etcd be closed
	stop       func()
	delay      *pausing // the member's store in a cluster test
	resume     func()   // ends the last pause of delay in a history
}

// newHealth returns a health for tests without a writer.
func newHealth(interval time.Duration) *health {
	return &health{driver: &driver{options: Options{Interval: interval, Now: time.Now}}}
}

func never(string, time.Time) time.Time { return time.Time{} }

func hourly(_ string, after time.Time) time.Time { return after.Truncate(time.Hour).Add(time.Hour) }

// fakeEtcd overrides values reported by an etcd server. A field with the zero value overrides nothing.
type fakeEtcd struct {
	Etcd
	backend  func() backend.Backend
	applied  func() uint64
	isLeader func() bool
	id       string
	term     uint64
}

// callOr calls fake, or the original if fake is nil.
func callOr[T any](fake, original func() T) T {
	if fake != nil {
		return fake()
	}
	return original()
}

func (f *fakeEtcd) Backend() backend.Backend { return callOr(f.backend, f.Etcd.Backend) }
func (f *fakeEtcd) AppliedIndex() uint64     { return callOr(f.applied, f.Etcd.AppliedIndex) }

func (f *fakeEtcd) Identity() capture.Identity {
	identity := f.Etcd.Identity()
	identity.MemberID, identity.Term = cmp.Or(f.id, identity.MemberID), cmp.Or(f.term, identity.Term)
	identity.Leader = callOr(f.isLeader, func() bool { return identity.Leader })
	return identity
}

// newHarness starts etcd without a writer, and lets the test run in parallel with others.
func newHarness(t *testing.T) *harness {
	t.Helper()
	t.Parallel()
	return newSequentialHarness(t)
}

// newSequentialHarness is like newHarness but does not run the test in parallel.
func newSequentialHarness(t *testing.T) *harness {
	t.Helper()
	dir := t.TempDir()
	s := &harness{T: t, etcd: etcdtest.Start(t, dir), store: memory.New(), log: &logtest.Lines{}}
	s.options = Options{
		Etcd: Server(s.etcd.Server), Interval: 100 * time.Millisecond, Schedule: never, Gate: &maintenance.Gate{}, Now: time.Now,
		SpoolDir: filepath.Join(t.TempDir(), "spool"), SpoolLimit: 1 << 30, DataDir: dir, Log: zerolog.New(s.log),
	}
	s.setIdentity(clusterID, 1)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log:\n%s", s.log)
		}
	})
	return s
}

func (s *harness) make() (*Writer, error) {
	options := s.options
	options.Session = cmp.Or(options.Session, archive.NewID())
	if options.Archive == nil {
		options.Archive = s.backups()
	}
	return New(options)
}

// clock replaces the writer's clock with one that returns the given Unix time until the test changes it.
func (s *harness) clock(start int64) *atomic.Int64 {
	var wall atomic.Int64
	wall.Store(start)
	s.options.Now = func() time.Time { return time.Unix(wall.Load(), 0) }
	return &wall
}

// newStartedHarness returns a harness whose writer has stored a full snapshot and all changes.
func newStartedHarness(t *testing.T) *harness {
	t.Helper()
	s := newHarness(t).run()
	s.putAndFlush("first", "value")
	return s
}

// run starts the writer, which runs until the test ends or calls s.stop. The tune functions change the writer before
// it starts, in this run and in all later runs.
func (s *harness) run(tune ...func(w *Writer)) *harness {
	s.Helper()
	s.tune = append(s.tune, tune...)
	superseded := make(chan error, 1)
	s.superseded, s.options.Superseded = superseded, func(reason error) { superseded <- reason }
	writer, err := s.make()
	require.NoError(s, err)
	writer.pace = timing{
		tick: 20 * time.Millisecond, gap: 300 * time.Millisecond, rest: 100 * time.Millisecond, ahead: 300 * time.Millisecond,
		foreignStore: 100 * time.Millisecond, headValid: patience, watch: 100 * time.Millisecond, emptyStore: 20 * time.Millisecond,
		retry: 50 * time.Millisecond, fullTimeout: patience, successor: patience, heartbeat: time.Hour, verifyOwner: patience, overdue: patience, check: patience,
	}
	for _, tune := range s.tune {
		tune(writer)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.Writer = writer
	go writer.Run(ctx)
	s.stop = sync.OnceFunc(func() { cancel(); <-writer.ended })
	s.Cleanup(s.stop)
	return s
}

func (s *harness) put(key, value string) int64 {
	s.Helper()
	answer, err := s.etcd.Client.Put(s.Context(), key, value)
	require.NoError(s, err)
	return answer.Header.Revision
}

func (s *harness) putAndFlush(key, value string) {
	s.Helper()
	s.awaitStored(s.put(key, value))
	require.NoError(s, s.Flush(s.Context()))
}

// compact compacts etcd and waits until the rows are deleted. Otherwise, the writer could still compare the remaining
// rows with the backups.
func (s *harness) compact(revision int64) {
	s.Helper()
	_, err := s.etcd.Client.Compact(s.Context(), revision, clientv3.WithCompactPhysical())
	require.NoError(s, err)
}

func (s *harness) eventually(condition func(Facts) bool, what string) {
	s.Helper()
	require.Eventually(s, func() bool { return condition(s.Facts()) }, patience, poll, what)
}

// requireProblem waits until the writer reports a problem, and checks that its message contains a text.
func (s *harness) requireProblem(text string) {
	s.Helper()
	s.eventually(func(f Facts) bool { return f.Problem != nil }, "the problem is reported")
	assert.Contains(s, s.Facts().Problem.Message, text)
}

// awaitNoTransaction waits until the writer has no open read transaction.
func (s *harness) awaitNoTransaction() {
	s.Helper()
	s.eventually(func(Facts) bool { return s.chain.reader.Open() == 0 }, "no transaction stays open")
}

// awaitStored waits until the writer reports a revision as stored.
func (s *harness) awaitStored(revision int64) {
	s.Helper()
	s.eventually(func(f Facts) bool { return f.Revision >= revision }, "the revision is stored")
}

// current returns the rows in etcd's database.
func (s *harness) current() []format.Row { return etcdtest.Rows(s.T, s.copied()) }

// copied copies etcd's current database to a file.
func (s *harness) copied() string {
	s.Helper()
	path := filepath.Join(s.TempDir(), "current")
	file, err := os.Create(path)
	require.NoError(s, err)
	snapshot := s.etcd.Server.Backend().Snapshot()
	_, err = snapshot.WriteTo(file)
	require.NoError(s, err)
	require.NoError(s, snapshot.Close())
	require.NoError(s, file.Close())
	return path
}

// restoreTarget reads the full snapshot and the segments that are needed to restore a target. It returns all rows, the
// result of reading the segments, and the objects used.
func restoreTarget(t *testing.T, from store.Store, target archive.Target) ([]format.Row, archive.Reading, archive.Path) {
	t.Helper()
	a := archive.New(from, keys)
	path, err := a.Find(t.Context(), target)
	require.NoError(t, err)
	full, err := a.OpenFull(t.Context(), path.Full)
	require.NoError(t, err)
	defer full.Close()
	name := filepath.Join(t.TempDir(), "full")
	file, err := os.Create(name)
	require.NoError(t, err)
	_, err = io.Copy(file, full)
	require.NoError(t, err)
	info, err := file.Stat()
	require.NoError(t, err)
	require.NoError(t, file.Truncate(info.Size()-32)) // remove the digest that follows the database
	require.NoError(t, file.Close())
	found := etcdtest.Rows(t, name)
	reading, err := a.Read(t.Context(), path, func(row format.Row) error {
		found = append(found, format.Row{Key: bytes.Clone(row.Key), Value: bytes.Clone(row.Value)})
		return nil
	})
	require.NoError(t, err)
	return found, reading, path
}

// requireAllStored requires that a restore contains exactly the rows in etcd's database.
func (s *harness) requireAllStored() archive.Path {
	s.Helper()
	found, _, path := restoreTarget(s.T, s.store, archive.Target{})
	etcdtest.RequireSameRows(s.T, s.current(), found)
	return path
}

// backups returns an archive in the harness's store that neither signs nor encrypts.
func (s *harness) backups() *archive.Archive { return archive.New(s.store, keys) }

// history returns the newest generation.
func (s *harness) history() *archive.GenerationContents {
	s.Helper()
	history, err := s.backups().History(s.Context())
	require.NoError(s, err)
	return history.Newest()
}

// requestFull requests a full snapshot in a goroutine and returns a channel for the result.
func (s *harness) requestFull() <-chan error {
	answer := make(chan error, 1)
	go func() { _, err := s.FullNow(s.Context(), "requested"); answer <- err }()
	return answer
}

// openCopy copies etcd's database and opens the copy under the given identity. The copy simulates a member that has
// not applied any later changes.
func (s *harness) openCopy(identity capture.Identity) Etcd {
	s.Helper()
	identity.ClusterID = Server(s.etcd.Server).Identity().ClusterID
	etcd, err := capture.OpenClosed(s.copied(), identity)
	require.NoError(s, err)
	s.Cleanup(func() { _ = etcd.Close() })
	return etcd
}

func (s *harness) full() archive.Full {
	s.Helper()
	done, err := s.FullNow(s.Context(), "requested")
	require.NoError(s, err)
	return done
}

// requireWhole flushes, and requires that the store contains a single chain with all of etcd's rows.
func (s *harness) requireWhole() {
	s.Helper()
	require.NoError(s, s.Flush(s.Context()))
	s.requireOneChain()
	s.requireAllStored()
}

func (s *harness) requireOneChain() {
	s.Helper()
	assert.Len(s, s.history().Chains, 1)
}

// queuedSegments returns the number of segments in the spool.
func (s *harness) queuedSegments() int {
	s.Helper()
	var count int
	s.do(func() { count = len(s.spool.Entries()) })
	return count
}

// do runs a function in the writer's goroutine.
func (s *harness) do(run func()) {
	s.Helper()
	require.NoError(s, s.Writer.do(s.Context(), run))
}
