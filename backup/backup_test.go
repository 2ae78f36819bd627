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

// fakeVerifier implements Options.Verify. It returns the given outcome without restoring anything.
type fakeVerifier struct {
	mu      sync.Mutex
	outcome archive.Outcome
	err     error
	before  func()
	paths   []archive.Path
}

func (p *fakeVerifier) verify(_ context.Context, path archive.Path) (archive.Result, error) {
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
		Outcome: p.outcome, Why: "outcome set by the test", At: time.Now().UTC().Truncate(time.Second), Member: "1",
	}, nil
}

func (p *fakeVerifier) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = err
}

func (p *fakeVerifier) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.paths)
}

func (p *fakeVerifier) restoreTests() (count int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, path := range p.paths {
		if path.Revision != path.Full.Revision {
			count++
		}
	}
	return count
}

// subject is an etcd server and the Backups under test.
type subject struct {
	now func() time.Time // value of Options.Now
	*backup.Backups
	etcd     *etcdtest.Etcd
	store    store.Store
	verifier *fakeVerifier
	dir      string
	gate     gate
}

// gate implements writer.Gate. It prevents defragmentations and snapshots from running at the same time.
type gate chan struct{}

func (g gate) Acquire(ctx context.Context, _ string) (end func(), err error) {
	select {
	case g <- struct{}{}:
		return func() { <-g }, nil
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
	s := &subject{store: in, verifier: &fakeVerifier{outcome: outcome}, dir: filepath.Join(dir, "new.etcd"), gate: make(gate, 1)}
	s.Backups = s.newBackups(t, &format.Keys{})
	s.etcd = etcdtest.Start(t, s.dir)
	t.Cleanup(func() { s.end(t) })
	return s
}

// newBackups returns new Backups for the same etcd, store and volume, as after a restart of the process.
func (s *subject) newBackups(t *testing.T, keys *format.Keys) *backup.Backups {
	t.Helper()
	schedule, err := backup.ParseSchedule("@daily")
	require.NoError(t, err)
	policy, err := retention.ParsePolicy("points=24h")
	require.NoError(t, err)
	return backup.New(backup.Options{
		Store: s.store, Keys: keys, Interval: 100 * time.Millisecond, Schedule: schedule, Policy: policy,
		SpoolDir: filepath.Join(filepath.Dir(s.dir), "spool"), SpoolLimit: 64 << 20, Verify: s.verifier.verify,
		ScratchDir: filepath.Join(filepath.Dir(s.dir), "scratch"), Gate: s.gate, Log: zerolog.Nop(), Now: s.now,
	})
}

func (s *subject) put(t *testing.T, times int) {
	t.Helper()
	for range times {
		_, err := s.etcd.Client.Put(t.Context(), "k", "v")
		require.NoError(t, err)
	}
}

// stored returns the last revision of the chain in the store.
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

// beginUntil calls Begin and waits for a condition.
func (s *subject) beginUntil(t *testing.T, holds func(backup.Facts) bool, what string) {
	t.Helper()
	s.Begin(writer.Server(s.etcd.Server), s.dir, "")
	s.eventually(t, holds, what)
}

// start calls Begin and waits until the first full snapshot of this run is stored.
func (s *subject) start(t *testing.T) {
	t.Helper()
	s.beginUntil(t, func(f backup.Facts) bool { return f.Writer.LastFull != nil }, "the first full snapshot is stored")
}

func (s *subject) end(t *testing.T) {
	t.Helper()
	require.NoError(t, s.End(soon(t)))
}

// stop calls End and closes etcd.
func (s *subject) stop(t *testing.T) {
	t.Helper()
	s.end(t)
	s.etcd.Server.Stop()
}

// nextRun stops the backups and replaces them with new ones, which have not been started.
func (s *subject) nextRun(t *testing.T) {
	t.Helper()
	s.end(t)
	s.Backups = s.newBackups(t, &format.Keys{})
}

func (s *subject) database() string { return filepath.Join(s.dir, "member", "snap", "db") }

// soon returns a context with a deadline for a call that must return soon.
func soon(t *testing.T) context.Context {
	t.Helper()
	// A cleanup function may call soon, and t.Context is already canceled then.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), etcdtest.Patience)
	t.Cleanup(cancel)
	return ctx
}

func TestFlush_uploadsAllAcknowledgedWrites(t *testing.T) {
	s := newSubject(t, archive.Verified)
	s.start(t)
	s.end(t)
	s.put(t, 100) // the writer no longer captures these changes
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
	s.beginUntil(t, func(f backup.Facts) bool { return f.Listed.LastVerification != nil }, "the first result")
	facts := s.Facts()
	assert.True(t, facts.Listed.LastVerification.Passed)
	assert.Equal(t, facts.Listed.LastFullSnapshot.Revision, facts.Listed.LastVerification.Revision)
	s.put(t, 10)
	made, err := s.Now(soon(t))
	require.NoError(t, err)
	s.eventually(t, func(f backup.Facts) bool { return f.Listed.LastVerification.Revision == made.Revision }, "the result of the next full snapshot")
	assert.GreaterOrEqual(t, s.Facts().Listed.Window.ToRevision, made.Revision)
	s.end(t)
	assert.LessOrEqual(t, s.verifier.count(), 3, "one test per full snapshot, and one of a random revision")
}

func TestAnUnrestorableFullSnapshotIsReplacedOnce(t *testing.T) {
	s := newSubject(t, archive.Failed)
	s.put(t, 10)
	s.beginUntil(t, func(f backup.Facts) bool {
		return f.Writer.Fulls == 2 && s.verifier.count() >= 2
	}, "a second full snapshot is stored and tested")
	assert.Contains(t, s.Facts().Writer.LastFull.Reason, "restore test")
	s.eventually(t, func(f backup.Facts) bool {
		return f.Listed.LastVerification.Revision == f.Writer.LastFull.Revision
	}, "the result of the second full snapshot")
	assert.False(t, s.Facts().Listed.LastVerification.Passed)
	s.end(t)
	assert.Equal(t, int64(2), s.Facts().Writer.Fulls, "the second failure does not cause a third full snapshot")
}

func TestAnUnusableSpoolIsReported(t *testing.T) {
	s := newSubject(t, archive.Verified)
	require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(s.dir), "spool"), nil, 0o600))
	s.beginUntil(t, func(f backup.Facts) bool { return f.StartProblem != nil }, "the problem is reported")
	assert.Contains(t, s.Facts().StartProblem.Message, "spool")
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

func TestUnconfirmed_returnsWhyTheGateIsClosed(t *testing.T) {
	gate := ack.NewGate()
	b := backup.New(backup.Options{Store: memory.New(), Keys: &format.Keys{}, Ack: gate})
	assert.Contains(t, b.Unconfirmed(), "clients are waiting because the backup store is not confirming writes: no upload has succeeded in the last minute")
	gate.Confirm(1, 0, time.Now())
	assert.Empty(t, b.Unconfirmed())
	gate.Confirm(1, 0, time.Now().Add(-ack.Validity))
	assert.Contains(t, b.Unconfirmed(), "no upload has succeeded in the last minute", "the last upload is too old")

	b = backup.New(backup.Options{Store: memory.New(), Keys: &format.Keys{}})
	assert.Empty(t, b.Unconfirmed(), "without the gate, no client waits")
}

// replace overwrites a key file with the contents of other files, as described in docs/backups.md.
func replace(t *testing.T, path string, sources ...string) {
	t.Helper()
	var all []byte
	for _, each := range sources {
		content, err := os.ReadFile(each)
		require.NoError(t, err)
		all = append(append(all, content...), '\n')
	}
	require.NoError(t, os.WriteFile(path, all, 0o600))
}

// restore reads the full snapshot and the segments that are needed to restore a revision.
func (s *subject) restore(t *testing.T, keys *format.Keys, revision int64) error {
	t.Helper()
	a := archive.New(s.store, keys)
	path, err := a.Find(t.Context(), archive.Target{Revision: revision})
	if err != nil {
		return err
	}
	content, err := a.OpenFull(t.Context(), path.Full)
	if err != nil {
		return err
	}
	defer content.Close()
	if _, err := io.Copy(io.Discard, content); err != nil {
		return err
	}
	_, err = a.Read(t.Context(), path, func(format.Row) error { return nil })
	return err
}

func TestKeysAreRotatedWhileBackupsAreMade(t *testing.T) {
	s := newSubject(t, archive.Verified)
	old, renewed, files := formattest.NewKeys(t), formattest.NewKeys(t), formattest.NewKeys(t)
	for _, kind := range [][2]string{
		{files.Recipients, old.Recipients},
		{files.Identities, old.Identities},
		{files.SigningKey, old.SigningKey},
		{files.TrustedKeys, old.TrustedKeys},
	} {
		replace(t, kind[0], kind[1])
	}
	putAndAwait := func(what string) int64 {
		t.Helper()
		s.put(t, 3)
		revision := s.etcd.Revision()
		require.Eventually(t, func() bool {
			state := s.Facts().Writer
			return state.Revision >= revision && state.Problem == nil
		}, etcdtest.Patience, 5*time.Millisecond, what)
		return revision
	}
	s.Backups = s.newBackups(t, files.Load(t))
	s.Begin(writer.Server(s.etcd.Server), s.dir, "")
	before := putAndAwait("with the old keys")

	replace(t, files.Identities, old.Identities, renewed.Identities)
	replace(t, files.Recipients, renewed.Recipients)
	between := putAndAwait("with the new recipient")
	replace(t, files.TrustedKeys, old.TrustedKeys, renewed.TrustedKeys)
	replace(t, files.SigningKey, renewed.SigningKey)
	putAndAwait("with the new signing key")
	made, err := s.Now(soon(t))
	require.NoError(t, err)
	s.end(t)
	s.Backups = s.newBackups(t, files.Load(t))
	s.Begin(writer.Server(s.etcd.Server), s.dir, "")
	latest := putAndAwait("after a restart")
	s.end(t)

	history, err := archive.New(s.store, files.Load(t)).History(t.Context())
	require.NoError(t, err)
	require.Len(t, history.Generations, 1)
	assert.Len(t, history.Newest().Chains, 1, "a rotation does not start a new chain")
	for _, revision := range []int64{before, between, made.Revision, latest} {
		assert.NoError(t, s.restore(t, files.Load(t), revision), "revision %d, with the old and the new identity", revision)
	}
	replace(t, files.Identities, renewed.Identities)
	assert.ErrorIs(t, s.restore(t, files.Load(t), before), format.ErrNoIdentity, "the old identity is missing")
	assert.NoError(t, s.restore(t, files.Load(t), latest), "the new identity is enough")
	replace(t, files.TrustedKeys, old.TrustedKeys)
	assert.ErrorIs(t, s.restore(t, files.Load(t), latest), format.ErrUntrusted)
}
