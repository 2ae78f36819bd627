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

// stand connects a real etcd to an in-memory store through a writer.
type stand struct {
	*testing.T
	etcd    *etcdtest.Etcd
	store   *memory.Store
	log     *logtest.Lines
	options Options           // Archive defaults to the archive in store
	tune    []func(w *Writer) // applied before the writer runs
	*Writer
	superseded chan error // receives the reason to close etcd
	end        func()
	delay      *pausing // the member's store in a cluster test
	resume     func()   // resumes delay
}

// newHealth returns a health that no writer uses.
func newHealth(interval time.Duration) *health {
	return &health{driver: &driver{options: Options{Interval: interval, Now: time.Now}}}
}

func never(string, time.Time) time.Time { return time.Time{} }

func hourly(_ string, after time.Time) time.Time { return after.Truncate(time.Hour).Add(time.Hour) }

// faked overrides the state that etcd reports. Nil fields use the real etcd.
type faked struct {
	Etcd
	backend  func() backend.Backend
	applied  func() uint64
	isLeader func() bool
	id       string
	term     uint64
}

func otherwise[T any](fake, is func() T) T {
	if fake != nil {
		return fake()
	}
	return is()
}

func (f *faked) Backend() backend.Backend { return otherwise(f.backend, f.Etcd.Backend) }
func (f *faked) AppliedIndex() uint64     { return otherwise(f.applied, f.Etcd.AppliedIndex) }

func (f *faked) Identity() capture.Identity {
	identity := f.Etcd.Identity()
	identity.MemberID, identity.Term = cmp.Or(f.id, identity.MemberID), cmp.Or(f.term, identity.Term)
	identity.Leader = otherwise(f.isLeader, func() bool { return identity.Leader })
	return identity
}

// newStand starts etcd without a writer. The test runs in parallel with others.
func newStand(t *testing.T) *stand {
	t.Helper()
	t.Parallel()
	return standIn(t)
}

// standIn is like newStand but does not run the test in parallel.
func standIn(t *testing.T) *stand {
	t.Helper()
	dir := t.TempDir()
	s := &stand{T: t, etcd: etcdtest.Start(t, dir), store: memory.New(), log: &logtest.Lines{}}
	s.options = Options{
		Etcd: Server(s.etcd.Server), Interval: 100 * time.Millisecond, Schedule: never, Gate: &maintenance.Gate{}, Now: time.Now,
		SpoolDir: filepath.Join(t.TempDir(), "spool"), SpoolLimit: 1 << 30, DataDir: dir, Log: zerolog.New(s.log),
	}
	s.is(clusterID, 1)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log:\n%s", s.log)
		}
	})
	return s
}

func (s *stand) make() (*Writer, error) {
	options := s.options
	options.Session = cmp.Or(options.Session, archive.NewID())
	if options.Archive == nil {
		options.Archive = s.backups()
	}
	return New(options)
}

// clock stops the writer's clock at the given Unix time. The test advances the returned clock.
func (s *stand) clock(at int64) *atomic.Int64 {
	var wall atomic.Int64
	wall.Store(at)
	s.options.Now = func() time.Time { return time.Unix(wall.Load(), 0) }
	return &wall
}

// startedStand returns a stand with a chain.
func startedStand(t *testing.T) *stand {
	t.Helper()
	s := newStand(t).run()
	s.putAndFlush("first", "value")
	return s
}

// run starts the writer, which runs until the test ends or calls stop. tune is also applied to later runs.
func (s *stand) run(tune ...func(w *Writer)) *stand {
	s.Helper()
	s.tune = append(s.tune, tune...)
	superseded := make(chan error, 1)
	s.superseded, s.options.Superseded = superseded, func(reason error) { superseded <- reason }
	writer, err := s.make()
	require.NoError(s, err)
	writer.pace = timing{
		tick: 20 * time.Millisecond, gap: 300 * time.Millisecond, rest: 100 * time.Millisecond, ahead: 300 * time.Millisecond,
		foreignStore: 100 * time.Millisecond, headValid: patience, watch: 100 * time.Millisecond, emptyStore: 20 * time.Millisecond,
		retry: 50 * time.Millisecond, fullPatience: patience, successor: patience, heartbeat: time.Hour, verifyOwner: patience, overdue: patience, check: patience,
	}
	for _, tune := range s.tune {
		tune(writer)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.Writer = writer
	go writer.Run(ctx)
	s.end = sync.OnceFunc(func() { cancel(); <-writer.ended })
	s.Cleanup(s.end)
	return s
}

func (s *stand) put(key, value string) int64 {
	s.Helper()
	answer, err := s.etcd.Client.Put(s.Context(), key, value)
	require.NoError(s, err)
	return answer.Header.Revision
}

func (s *stand) putAndFlush(key, value string) {
	s.Helper()
	s.awaitStored(s.put(key, value))
	require.NoError(s, s.Flush(s.Context()))
}

// compact compacts etcd and waits until the rows are deleted, because a remaining row would still identify the data.
func (s *stand) compact(revision int64) {
	s.Helper()
	_, err := s.etcd.Client.Compact(s.Context(), revision, clientv3.WithCompactPhysical())
	require.NoError(s, err)
}

func (s *stand) eventually(condition func(Facts) bool, what string) {
	s.Helper()
	require.Eventually(s, func() bool { return condition(s.Facts()) }, patience, poll, what)
}

// requireProblem waits for a problem and checks its message.
func (s *stand) requireProblem(says string) {
	s.Helper()
	s.eventually(func(f Facts) bool { return f.Problem != nil }, "the problem is reported")
	assert.Contains(s, s.Facts().Problem.Message, says)
}

// closesTransactions waits for the current capture to finish.
func (s *stand) closesTransactions() {
	s.Helper()
	s.eventually(func(Facts) bool { return s.chain.reader.Open() == 0 }, "no transaction stays open")
}

// awaitStored waits until a revision is stored.
func (s *stand) awaitStored(revision int64) {
	s.Helper()
	s.eventually(func(f Facts) bool { return f.Revision >= revision }, "the revision is stored")
}

// current returns the rows in etcd's database.
func (s *stand) current() []format.Row { return etcdtest.Rows(s.T, s.copied()) }

// copied copies etcd's current database to a file.
func (s *stand) copied() string {
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

// kept restores a target from the store and verifies the result.
func kept(t *testing.T, from store.Store, target archive.Target) ([]format.Row, archive.Reading, archive.Path) {
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
	information, err := file.Stat()
	require.NoError(t, err)
	require.NoError(t, file.Truncate(information.Size()-32)) // strip the trailing digest
	require.NoError(t, file.Close())
	found := etcdtest.Rows(t, name)
	reading, err := a.Read(t.Context(), path, func(row format.Row) error {
		found = append(found, format.Row{Key: bytes.Clone(row.Key), Value: bytes.Clone(row.Value)})
		return nil
	})
	require.NoError(t, err)
	return found, reading, path
}

// requireAllKept requires that the store contains all of etcd's rows.
func (s *stand) requireAllKept() archive.Path {
	s.Helper()
	found, _, path := kept(s.T, s.store, archive.Target{})
	etcdtest.RequireSameRows(s.T, s.current(), found)
	return path
}

// backups returns the archive in the store.
func (s *stand) backups() *archive.Archive { return archive.New(s.store, keys) }

// history returns the newest generation.
func (s *stand) history() *archive.GenerationContents {
	s.Helper()
	history, err := s.backups().History(s.Context())
	require.NoError(s, err)
	return history.Newest()
}

// asked requests a full snapshot and returns a channel for the result.
func (s *stand) asked() <-chan error {
	answer := make(chan error, 1)
	go func() { _, err := s.FullNow(s.Context(), "requested"); answer <- err }()
	return answer
}

// frozen returns etcd's current state, as seen by a member that is paused now.
func (s *stand) frozen(who capture.Identity) Etcd {
	s.Helper()
	who.ClusterID = Server(s.etcd.Server).Identity().ClusterID
	etcd, err := capture.OpenClosed(s.copied(), who)
	require.NoError(s, err)
	s.Cleanup(func() { _ = etcd.Close() })
	return etcd
}

func (s *stand) full() archive.Full {
	s.Helper()
	done, err := s.FullNow(s.Context(), "requested")
	require.NoError(s, err)
	return done
}

// requireWhole requires that a single chain in the store contains all of etcd's rows.
func (s *stand) requireWhole() {
	s.Helper()
	require.NoError(s, s.Flush(s.Context()))
	s.requireOneChain()
	s.requireAllKept()
}

func (s *stand) requireOneChain() {
	s.Helper()
	assert.Len(s, s.history().Chains, 1)
}

// waits returns the number of segments waiting in the spool.
func (s *stand) waits() int {
	s.Helper()
	var count int
	s.do(func() { count = len(s.spool.Entries()) })
	return count
}

// do runs a function in the writer's goroutine.
func (s *stand) do(what func()) {
	s.Helper()
	require.NoError(s, s.Writer.do(s.Context(), what))
}
