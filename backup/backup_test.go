package backup_test

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup"
	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/retention"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
	"etcd-wrapper/backup/writer"
	"etcd-wrapper/cmd/suites/etcdtest"
)

// proof is a test restore whose outcome a test decides.
type proof struct {
	mu      sync.Mutex
	outcome archive.Outcome
	err     error
	before  func()
	paths   []archive.Path
}

func (p *proof) verify(_ context.Context, path archive.Path) (archive.Result, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.paths = append(p.paths, path)
	if p.before != nil {
		p.before()
	}
	if p.err != nil {
		return archive.Result{}, p.err
	}
	return archive.Result{
		Segments: path.Revision != path.Full.Revision,
		Cluster:  path.Generation.Cluster, Generation: path.Generation.Number, Full: path.Full.Name(), Revision: path.Revision,
		Outcome: p.outcome, Why: "as the test wants it", At: time.Now().UTC().Truncate(time.Second), Member: "1",
	}, nil
}

func (p *proof) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = err
}

func (p *proof) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.paths)
}

func (p *proof) restoreTests() (count int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, path := range p.paths {
		if path.Revision != path.Full.Revision {
			count++
		}
	}
	return count
}

// subject is the backups of an etcd.
type subject struct {
	now func() time.Time // the wall clock; nil if it is right
	*backup.Backups
	etcd  *etcdtest.Etcd
	store store.Store
	proof *proof
	dir   string
	turns turns
}

// turns keeps defragmentation and snapshots apart, beside each other they freeze etcd for good.
type turns chan struct{}

func (t turns) Begin(ctx context.Context, _ string) (end func(), err error) {
	select {
	case t <- struct{}{}:
		return func() { <-t }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func newSubject(t *testing.T, outcome archive.Outcome) *subject {
	t.Helper()
	return newSubjectIn(t, memory.New(), outcome)
}

func newSubjectIn(t *testing.T, in store.Store, outcome archive.Outcome) *subject {
	t.Helper()
	dir := t.TempDir()
	s := &subject{store: in, proof: &proof{outcome: outcome}, dir: filepath.Join(dir, "new.etcd"), turns: make(turns, 1)}
	s.Backups = s.another(t, &format.Keys{})
	s.etcd = etcdtest.Start(t, s.dir)
	return s
}

// another are backups of the next run.
func (s *subject) another(t *testing.T, keys *format.Keys) *backup.Backups {
	t.Helper()
	when, err := backup.ParseSchedule("@daily")
	require.NoError(t, err)
	policy, err := retention.ParsePolicy("points=24h")
	require.NoError(t, err)
	return backup.New(backup.Options{
		Store: s.store, Keys: keys, Interval: 100 * time.Millisecond, Schedule: when, Policy: policy,
		SpoolDir: filepath.Join(filepath.Dir(s.dir), "spool"), SpoolLimit: 64 << 20, Verify: s.proof.verify, ScratchDir: filepath.Join(filepath.Dir(s.dir), "scratch"), Gate: s.turns, Log: zerolog.Nop(), Now: s.now,
	})
}

func (s *subject) put(t *testing.T, times int) {
	t.Helper()
	for range times {
		_, err := s.etcd.Client.Put(t.Context(), "k", "v")
		require.NoError(t, err)
	}
}

// stored is the last revision in the store.
func (s *subject) stored(t *testing.T) int64 {
	t.Helper()
	head, err := archive.New(s.store, &format.Keys{}).Head(t.Context(), 1)
	require.NoError(t, err)
	return head.Revision()
}

func (s *subject) eventually(t *testing.T, holds func(backup.Facts) bool, what string) {
	t.Helper()
	require.Eventually(t, func() bool { return holds(s.Facts()) }, etcdtest.Patience, 5*time.Millisecond, what)
}

func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), etcdtest.Patience)
	t.Cleanup(cancel)
	return ctx
}

func TestAllThatEtcdTookOnUntilItWasClosedIsInTheStoreThen(t *testing.T) {
	s := newSubject(t, archive.Verified)
	s.Begin(writer.Server(s.etcd.Server), backup.Data{Dir: s.dir})
	s.eventually(t, func(f backup.Facts) bool { return f.Shipped.LastFull != nil }, "a first full")
	require.NoError(t, s.End(soon(t)))
	s.put(t, 100) // nobody looks any more
	revision := s.etcd.Revision()
	s.etcd.Server.Stop()
	require.Less(t, s.stored(t), revision)
	require.NoError(t, s.Flush(soon(t), filepath.Join(s.dir, "member", "snap", "db")))
	require.Equal(t, revision, s.stored(t))
}

func TestAFlushThatIsCutShortSaysWhatIsMissing(t *testing.T) {
	s := newSubject(t, archive.Verified)
	s.Begin(writer.Server(s.etcd.Server), backup.Data{Dir: s.dir})
	s.eventually(t, func(f backup.Facts) bool { return f.Shipped.LastFull != nil }, "a first full")
	require.NoError(t, s.End(soon(t)))
	s.put(t, 10)
	s.etcd.Server.Stop()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.Error(t, s.Flush(ctx, filepath.Join(s.dir, "member", "snap", "db")))
}

func TestEveryNewFullIsRestoredOnceToTestIt(t *testing.T) {
	s := newSubject(t, archive.Verified)
	s.put(t, 10)
	s.Begin(writer.Server(s.etcd.Server), backup.Data{Dir: s.dir})
	s.eventually(t, func(f backup.Facts) bool { return f.Kept.Result != nil }, "a result")
	facts := s.Facts()
	assert.Equal(t, archive.Verified, facts.Kept.Result.Outcome)
	assert.Equal(t, facts.Kept.LastFull.Name(), facts.Kept.Result.Full)
	s.put(t, 10)
	made, err := s.Now(soon(t))
	require.NoError(t, err)
	s.eventually(t, func(f backup.Facts) bool { return f.Kept.Result.Full == made.Name() }, "the result on the next full")
	assert.GreaterOrEqual(t, s.Facts().Kept.To, made.Revision)
	require.NoError(t, s.End(soon(t)))
	assert.LessOrEqual(t, s.proof.count(), 3, "one for each full, and a restore test")
}

func TestAFullThatCannotBeRestoredIsReplacedAndNotOneAfterTheOther(t *testing.T) {
	s := newSubject(t, archive.Failed)
	s.put(t, 10)
	s.Begin(writer.Server(s.etcd.Server), backup.Data{Dir: s.dir})
	s.eventually(t, func(f backup.Facts) bool { return f.Shipped.Fulls == 2 && s.proof.count() >= 2 }, "a full in the place of the first")
	assert.Contains(t, s.Facts().Shipped.LastFull.Reason, "test restore")
	s.eventually(t, func(f backup.Facts) bool { return f.Kept.Result.Full == f.Shipped.LastFull.Name() }, "the result on it")
	assert.Equal(t, archive.Failed, s.Facts().Kept.Result.Outcome)
	require.NoError(t, s.End(soon(t)))
	assert.Equal(t, int64(2), s.Facts().Shipped.Fulls, "what fails again has a cause that more fulls don't mend")
}

func TestASpoolThatCannotBeUsedIsSaidAndEtcdServes(t *testing.T) {
	s := newSubject(t, archive.Verified)
	require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(s.dir), "spool"), nil, 0o600))
	s.Begin(writer.Server(s.etcd.Server), backup.Data{Dir: s.dir})
	s.eventually(t, func(f backup.Facts) bool { return f.Unable != nil }, "the trouble")
	assert.Contains(t, s.Facts().Unable.Text, "spool")
	_, err := s.Now(soon(t))
	require.ErrorIs(t, err, backup.ErrNotRunning)
	s.put(t, 1)
	require.NoError(t, s.End(soon(t)))
}

// A pod may be asked to stop right after it became ready.
func TestAnEtcdThatIsClosedAtOnceIsBroughtToTheStoreAllTheSame(t *testing.T) {
	s := newSubject(t, archive.Verified)
	s.put(t, 10)
	revision := s.etcd.Revision()
	s.Begin(writer.Server(s.etcd.Server), backup.Data{Dir: s.dir})
	require.NoError(t, s.End(soon(t)))
	s.etcd.Server.Stop()
	require.NoError(t, s.Flush(soon(t), filepath.Join(s.dir, "member", "snap", "db")))
	require.Equal(t, revision, s.stored(t))
}

func TestAFlushSaysThatTheSpoolCannotBeUsed(t *testing.T) {
	s := newSubject(t, archive.Verified)
	require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(s.dir), "spool"), nil, 0o600))
	s.Begin(writer.Server(s.etcd.Server), backup.Data{Dir: s.dir})
	require.NoError(t, s.End(soon(t)))
	s.etcd.Server.Stop()
	require.ErrorContains(t, s.Flush(soon(t), filepath.Join(s.dir, "member", "snap", "db")), "spool")
}
