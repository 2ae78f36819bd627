package backup_test

import (
	"context"
	"io"
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
	"etcd-wrapper/backup/format/formattest"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
	"etcd-wrapper/backup/writer"
	"etcd-wrapper/backup/writer/ack"
	"etcd-wrapper/cmd/suites/etcdtest"
)

// proof is a fake restore test.
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

// subject is an etcd server and its backups.
type subject struct {
	now func() time.Time // wall clock; nil for the real one
	*backup.Backups
	etcd  *etcdtest.Etcd
	store store.Store
	proof *proof
	dir   string
	turns turns
}

// turns prevents defragmentations and snapshots from running at the same time.
type turns chan struct{}

func (t turns) Acquire(ctx context.Context, _ string) (end func(), err error) {
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
	t.Cleanup(func() { s.end(t) })
	return s
}

// another returns Backups for the next run.
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

// stored returns the last revision in the store.
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

// beginUntil starts the backups and waits for a condition.
func (s *subject) beginUntil(t *testing.T, holds func(backup.Facts) bool, what string) {
	t.Helper()
	s.Begin(writer.Server(s.etcd.Server), s.dir, "")
	s.eventually(t, holds, what)
}

// start starts the backups and waits for the first full snapshot of this run.
func (s *subject) start(t *testing.T) {
	t.Helper()
	s.beginUntil(t, func(f backup.Facts) bool { return f.Shipped.LastFull != nil }, "a full snapshot")
}

func (s *subject) end(t *testing.T) {
	t.Helper()
	require.NoError(t, s.End(soon(t)))
}

// stop stops the backups and closes etcd.
func (s *subject) stop(t *testing.T) {
	t.Helper()
	s.end(t)
	s.etcd.Server.Stop()
}

// nextRun stops the backups and prepares the backups of the next run.
func (s *subject) nextRun(t *testing.T) {
	t.Helper()
	s.end(t)
	s.Backups = s.another(t, &format.Keys{})
}

func (s *subject) database() string { return filepath.Join(s.dir, "member", "snap", "db") }

func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), etcdtest.Patience) // this may be called from a cleanup
	t.Cleanup(cancel)
	return ctx
}

func TestFlush_uploadsAllAcknowledgedWrites(t *testing.T) {
	s := newSubject(t, archive.Verified)
	s.start(t)
	s.end(t)
	s.put(t, 100) // the caller has stopped reading
	revision := s.etcd.Revision()
	s.etcd.Server.Stop()
	require.Less(t, s.stored(t), revision)
	require.NoError(t, s.Flush(soon(t), s.database()))
	require.Equal(t, revision, s.stored(t))
}

func TestFlush_endsWithItsContext(t *testing.T) {
	s := newSubject(t, archive.Verified)
	s.start(t)
	s.end(t)
	s.put(t, 10)
	s.etcd.Server.Stop()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.Error(t, s.Flush(ctx, s.database()))
}

func TestEachFullSnapshotIsRestoredOnceToTestIt(t *testing.T) {
	s := newSubject(t, archive.Verified)
	s.put(t, 10)
	s.beginUntil(t, func(f backup.Facts) bool { return f.Listed.LastVerification != nil }, "a result")
	facts := s.Facts()
	assert.True(t, facts.Listed.LastVerification.Passed)
	assert.Equal(t, facts.Listed.LastFullSnapshot.Revision, facts.Listed.LastVerification.Revision)
	s.put(t, 10)
	made, err := s.Now(soon(t))
	require.NoError(t, err)
	s.eventually(t, func(f backup.Facts) bool { return f.Listed.LastVerification.Revision == made.Revision }, "the result of the next full snapshot")
	assert.GreaterOrEqual(t, s.Facts().Listed.Window.ToRevision, made.Revision)
	s.end(t)
	assert.LessOrEqual(t, s.proof.count(), 3, "one for each full, and a restore test")
}

func TestAnUnrestorableFullSnapshotIsReplacedOnce(t *testing.T) {
	s := newSubject(t, archive.Failed)
	s.put(t, 10)
	s.beginUntil(t, func(f backup.Facts) bool { return f.Shipped.Fulls == 2 && s.proof.count() >= 2 }, "a second full snapshot")
	assert.Contains(t, s.Facts().Shipped.LastFull.Reason, "restore test")
	s.eventually(t, func(f backup.Facts) bool { return f.Listed.LastVerification.Revision == f.Shipped.LastFull.Revision }, "the result of the second full snapshot")
	assert.False(t, s.Facts().Listed.LastVerification.Passed)
	s.end(t)
	assert.Equal(t, int64(2), s.Facts().Shipped.Fulls, "another full snapshot would fail as well")
}

func TestAnUnusableSpoolIsReported(t *testing.T) {
	s := newSubject(t, archive.Verified)
	require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(s.dir), "spool"), nil, 0o600))
	s.beginUntil(t, func(f backup.Facts) bool { return f.Unable != nil }, "the problem")
	assert.Contains(t, s.Facts().Unable.Message, "spool")
	_, err := s.Now(soon(t))
	require.ErrorIs(t, err, backup.ErrNotRunning)
	s.put(t, 1)
	s.stop(t)
	require.ErrorContains(t, s.Flush(soon(t), s.database()), "spool")
}

func TestFlush_uploadsEverythingIfEtcdIsClosedAtOnce(t *testing.T) {
	s := newSubject(t, archive.Verified)
	s.put(t, 10)
	revision := s.etcd.Revision()
	s.Begin(writer.Server(s.etcd.Server), s.dir, "")
	s.stop(t)
	require.NoError(t, s.Flush(soon(t), s.database()))
	require.Equal(t, revision, s.stored(t))
}

func TestUnconfirmed_saysWhyTheGateIsClosed(t *testing.T) {
	gate := ack.NewGate()
	b := backup.New(backup.Options{Store: memory.New(), Keys: &format.Keys{}, Ack: gate})
	assert.Contains(t, b.Unconfirmed(), "clients are waiting because the backup store is not confirming writes: no upload has succeeded in the last minute")
	gate.Confirm(1, 0, time.Now())
	assert.Empty(t, b.Unconfirmed())
	gate.Confirm(1, 0, time.Now().Add(-ack.Validity))
	assert.Contains(t, b.Unconfirmed(), "no upload has succeeded in the last minute", "the reason is the same")

	b = backup.New(backup.Options{Store: memory.New(), Keys: &format.Keys{}})
	assert.Empty(t, b.Unconfirmed(), "no client waits")
}

// replace overwrites a key file with the contents of other files, as described in docs/backups.md.
func replace(t *testing.T, path string, by ...string) {
	t.Helper()
	var all []byte
	for _, each := range by {
		content, err := os.ReadFile(each)
		require.NoError(t, err)
		all = append(append(all, content...), '\n')
	}
	require.NoError(t, os.WriteFile(path, all, 0o600))
}

// restores reads the full snapshot and the segments that are needed to restore a revision.
func (s *subject) restores(t *testing.T, keys *format.Keys, revision int64) error {
	t.Helper()
	from := archive.New(s.store, keys)
	path, err := from.Find(t.Context(), archive.Target{Revision: revision})
	if err != nil {
		return err
	}
	content, err := from.OpenFull(t.Context(), path.Full)
	if err != nil {
		return err
	}
	defer content.Close()
	if _, err := io.Copy(io.Discard, content); err != nil {
		return err
	}
	_, err = from.Read(t.Context(), path, func(format.Row) error { return nil })
	return err
}

func TestKeysAreRotatedWhileBackupsAreMade(t *testing.T) {
	s := newSubject(t, archive.Verified)
	old, renewed, given := formattest.NewKeys(t), formattest.NewKeys(t), formattest.NewKeys(t)
	for _, kind := range [][2]string{
		{given.Recipients, old.Recipients},
		{given.Identities, old.Identities},
		{given.SigningKey, old.SigningKey},
		{given.TrustedKeys, old.TrustedKeys},
	} {
		replace(t, kind[0], kind[1])
	}
	goesOn := func(life *backup.Backups, what string) int64 {
		t.Helper()
		s.put(t, 3)
		revision := s.etcd.Revision()
		require.Eventually(t, func() bool {
			is := life.Facts().Shipped
			return is.Revision >= revision && is.Problem == nil
		}, etcdtest.Patience, 5*time.Millisecond, what)
		return revision
	}
	s.Backups = s.another(t, given.Load(t))
	s.Begin(writer.Server(s.etcd.Server), s.dir, "")
	before := goesOn(s.Backups, "before")

	replace(t, given.Identities, old.Identities, renewed.Identities)
	replace(t, given.Recipients, renewed.Recipients)
	between := goesOn(s.Backups, "with another identity")
	replace(t, given.TrustedKeys, old.TrustedKeys, renewed.TrustedKeys)
	replace(t, given.SigningKey, renewed.SigningKey)
	goesOn(s.Backups, "with another signing key")
	made, err := s.Now(soon(t))
	require.NoError(t, err)
	s.end(t)
	s.Backups = s.another(t, given.Load(t))
	s.Begin(writer.Server(s.etcd.Server), s.dir, "")
	latest := goesOn(s.Backups, "in another life")
	s.end(t)

	history, err := archive.New(s.store, given.Load(t)).History(t.Context())
	require.NoError(t, err)
	require.Len(t, history.Generations, 1)
	assert.Len(t, history.Newest().Chains, 1, "the chain continues")
	for _, revision := range []int64{before, between, made.Revision, latest} {
		assert.NoError(t, s.restores(t, given.Load(t), revision), "with both, revision %d", revision)
	}
	replace(t, given.Identities, renewed.Identities)
	assert.ErrorIs(t, s.restores(t, given.Load(t), before), format.ErrNoIdentity, "the old one is needed for what it was encrypted to")
	assert.NoError(t, s.restores(t, given.Load(t), latest), "and for nothing else")
	replace(t, given.TrustedKeys, old.TrustedKeys)
	assert.ErrorIs(t, s.restores(t, given.Load(t), latest), format.ErrUntrusted)
}
