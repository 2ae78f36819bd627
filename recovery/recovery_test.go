package recovery

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/store/memory"
	"etcd-wrapper/bootstrap"
	"etcd-wrapper/bootstrap/datadir"
	"etcd-wrapper/bootstrap/etcdconf"
	"etcd-wrapper/exitcode"
	"etcd-wrapper/recovery/peers"
	"etcd-wrapper/recovery/seed"
)

var at = time.Date(2026, 11, 22, 1, 2, 3, 0, time.UTC)

// If the store hangs, etcd must start with valid data once the time limit has passed.
func TestValidDataIsServedWhenTheStoreHangs(t *testing.T) {
	f := newFilledFixture(t)
	f.options.FlushSpool = func(ctx context.Context, _ archive.Identity, _ int64) error {
		<-ctx.Done()
		return ctx.Err()
	}
	r := f.recovery()
	r.serveAfter = time.Millisecond
	require.NoError(t, f.prepare(r))
	assert.True(t, r.Progress().Uncompared)
}

func TestValidVolumeIsNotChanged(t *testing.T) {
	f := newFilledFixture(t)
	f.put("another key")
	before := positionOf(t, f.member.DataDir)
	require.NoError(t, f.run())
	assert.Equal(t, before, positionOf(t, f.member.DataDir))
	assert.Len(t, f.generations(), 1)
	assert.NoFileExists(t, filepath.Join(f.volume, recordFile))
}

// If etcd would refuse to create the cluster, recovery must not initialize the store.
func TestClusterThatEtcdRefusesIsNotFounded(t *testing.T) {
	f := newFixture(t)
	f.member.InitialCluster += ",default=http://a:1,b=http://b:1"
	err := f.run()
	require.ErrorContains(t, err, "use the same URLs in both")
	assert.Equal(t, exitcode.BadConfig, f.statusOf(err))
	assert.Empty(t, f.objects(""))
}

func TestRestoreThatWasDoneIsLoggedOnce(t *testing.T) {
	f := newFilledFixture(t)
	f.options.Request = &Request{Target: archive.Target{Revision: 2}, ID: "drop"}
	require.NoError(t, f.run())
	r := f.recovery()
	for range 2 {
		require.NoError(t, f.prepare(r))
	}
	assert.Equal(t, 1, strings.Count(f.log.String(), "restore \\\"drop\\\" has already been done"))
}

func TestProgressWhileTheStoreIsUnreachable(t *testing.T) {
	f := newFilledFixture(t)
	f.store.Inject(memory.Fault{Op: memory.Get, Times: 3, Err: memory.ErrUnreachable})
	r := f.recovery()
	var waits, asks []Progress
	r.wait = func(context.Context, int) { waits = append(waits, r.Progress()) }
	r.interrupt = func(action Action) error {
		if action == AskTheStore {
			asks = append(asks, r.Progress())
		}
		return nil
	}
	require.NoError(t, f.prepare(r))
	require.Len(t, waits, 3)
	for _, progress := range waits {
		assert.Equal(t, AskStore, progress.State)
		assert.Equal(t, waits[0].Since, progress.Since, "a retry does not change the time")
		assert.Contains(t, progress.Reason, "memory://test/: store unavailable: dial tcp: connection refused; check that the store is reachable")
		assert.Contains(t, progress.Reason, "; next attempt within ")
	}
	for _, progress := range asks[1:] {
		assert.Contains(t, progress.Reason, "store unavailable", "the reason is still shown during the next request")
		assert.NotContains(t, progress.Reason, "next attempt")
	}
}

func TestSpoolIsUploadedUnlessValidDataIncludesIt(t *testing.T) {
	for name, test := range map[string]struct {
		action func(*fixture)
		has    archive.Identity // identity that FlushSpool receives; zero if there is no valid data
	}{
		"valid":  {func(*fixture) {}, archive.Identity{Cluster: ours, Generation: 1}},
		"broken": {losses["broken"], archive.Identity{}},
		"empty":  {losses["empty"], archive.Identity{}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFilledFixture(t)
			reach := positionOf(t, f.member.DataDir).HighestRevision
			test.action(f)
			flushes := 0
			f.options.FlushSpool = func(_ context.Context, data archive.Identity, received int64) error {
				flushes++
				assert.Equal(t, test.has, data)
				assert.True(t, received == reach || !data.Known())
				assert.Len(t, f.generations(), 1)
				return nil
			}
			require.NoError(t, f.run())
			assert.Equal(t, 1, flushes)
		})
	}
}

// newRecovery returns a Recovery that uses the given validation.
func newRecovery(t *testing.T, verify datadir.Validation) *Recovery {
	t.Helper()
	volume := t.TempDir()
	dataDir := filepath.Join(volume, "new.etcd")
	require.NoError(t, os.Mkdir(dataDir, 0o700))
	r := New(Options{VolumeDir: volume, Config: etcdconf.Source{DataDir: dataDir}, Validate: verify, Log: zerolog.Nop()})
	t.Cleanup(r.Close)
	return r
}

func validationOf(result error) datadir.Validation {
	return func(context.Context, string, bootstrap.Mode) ([]string, error) { return nil, result }
}

func requireStatus(t *testing.T, r *Recovery, want bootstrap.InitializationStatus) {
	t.Helper()
	status, err := r.Status(t.Context())
	require.NoError(t, err)
	require.Equal(t, want, status)
}

// initialize runs an initialization until it is done.
func initialize(t *testing.T, r *Recovery) {
	t.Helper()
	require.NoError(t, r.Trigger(t.Context(), bootstrap.Full))
	r.running.Wait()
}

func TestStatusIsReadOnce(t *testing.T) {
	for want, result := range map[bootstrap.InitializationStatus]error{
		bootstrap.Successful: nil,
		bootstrap.Failed:     errors.New("broken"),
	} {
		r := newRecovery(t, validationOf(result))
		requireStatus(t, r, bootstrap.New)
		requireStatus(t, r, bootstrap.New)
		initialize(t, r)
		requireStatus(t, r, want)
		requireStatus(t, r, bootstrap.New)
	}
}

func TestStatusIsKeptIfTheReaderHasLeft(t *testing.T) {
	r := newRecovery(t, validationOf(nil))
	initialize(t, r)
	gone, leave := context.WithCancel(t.Context())
	leave()
	_, err := r.Status(gone)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, r.Trigger(gone, bootstrap.Full), context.Canceled)
	requireStatus(t, r, bootstrap.Successful)
}

func TestTriggerStartsOnlyOneRun(t *testing.T) {
	var runs atomic.Int32
	release := make(chan struct{})
	r := newRecovery(t, func(context.Context, string, bootstrap.Mode) ([]string, error) {
		runs.Add(1)
		<-release
		return nil, nil
	})
	for range 3 {
		require.NoError(t, r.Trigger(t.Context(), bootstrap.Full))
		requireStatus(t, r, bootstrap.Progress)
	}
	close(release)
	r.running.Wait()
	require.NoError(t, r.Trigger(t.Context(), bootstrap.Full), "no new run starts until the result is read")
	r.running.Wait()
	require.EqualValues(t, 1, runs.Load())
	requireStatus(t, r, bootstrap.Successful)
}

func TestUnknownModeMeansFull(t *testing.T) {
	for asked, want := range map[bootstrap.Mode]bootstrap.Mode{
		bootstrap.Sanity: bootstrap.Sanity, bootstrap.Full: bootstrap.Full, "": bootstrap.Full, "SANITY": bootstrap.Full,
	} {
		ran := make(chan bootstrap.Mode, 1)
		r := newRecovery(t, func(_ context.Context, _ string, mode bootstrap.Mode) ([]string, error) {
			ran <- mode
			return nil, nil
		})
		require.NoError(t, r.Trigger(t.Context(), asked))
		require.Equal(t, want, <-ran)
	}
}

// Close must stop an initialization and wait for it to end. The stop must not be reported as an error.
func TestCloseStopsAnInitializationAndWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := false
		r := newRecovery(t, func(ctx context.Context, _ string, _ bootstrap.Mode) ([]string, error) {
			<-ctx.Done()
			time.Sleep(time.Second) // in fake time
			ended = true
			return nil, ctx.Err()
		})
		var log bytes.Buffer
		r.options.Log = zerolog.New(&log)
		require.NoError(t, r.Trigger(t.Context(), bootstrap.Full))
		synctest.Wait()
		r.Close()
		require.True(t, ended)
		requireStatus(t, r, bootstrap.Failed)
		require.ErrorContains(t, r.Trigger(t.Context(), bootstrap.Full), "closed")
		r.Close()
		assert.NotContains(t, log.String(), `"level":"error"`)
		assert.Contains(t, log.String(), "recovery was stopped in state Examine")
	})
}

func TestFailureIsReportedAndLoggedOnce(t *testing.T) {
	r := newRecovery(t, validationOf(errors.New("db: invalid page")))
	var log bytes.Buffer
	r.options.Log = zerolog.New(&log).Level(zerolog.ErrorLevel)
	require.NoError(t, r.WhyFailed())
	for range 2 {
		initialize(t, r)
		requireStatus(t, r, bootstrap.Failed)
		require.ErrorContains(t, r.WhyFailed(), "data directory "+r.options.Config.DataDir+" is corrupt or unusable: db: invalid page")
	}
	lines := bytes.Split(bytes.TrimSpace(log.Bytes()), []byte("\n"))
	require.Len(t, lines, 1)
	for _, part := range []string{`"mode":"full"`, `"result":"Failed"`, `"took_ms":`, "db: invalid page"} {
		assert.Contains(t, string(lines[0]), part)
	}
}

func TestConfigIsTheValidatedOne(t *testing.T) {
	r := newRecovery(t, validationOf(nil))
	first, second := "name: etcd-0\ndata-dir: "+r.options.Config.DataDir, "name: another"
	r.options.Config.File = filepath.Join(t.TempDir(), "etcd.yaml")
	require.NoError(t, os.WriteFile(r.options.Config.File, []byte(first), 0o600))
	initialize(t, r)
	requireStatus(t, r, bootstrap.Successful)
	require.NoError(t, os.WriteFile(r.options.Config.File, []byte(second), 0o600))
	served, err := r.Config(t.Context())
	require.NoError(t, err)
	require.Equal(t, first, string(served))
}

func TestMissingConfigFails(t *testing.T) {
	r := newRecovery(t, func(context.Context, string, bootstrap.Mode) ([]string, error) {
		return nil, errors.New("validation must not be called")
	})
	r.options.Config.File = filepath.Join(t.TempDir(), "etcd.yaml")
	initialize(t, r)
	requireStatus(t, r, bootstrap.Failed)
	require.ErrorIs(t, r.WhyFailed(), os.ErrNotExist)
}

// A locked or unreadable database must not be mistaken for a new member.
func TestUnreadableVolumeIsNotEmpty(t *testing.T) {
	f, o := memberOfThree(t)
	held, err := bolt.Open(f.database(), 0o600, nil)
	require.NoError(t, err)
	defer held.Close()
	_, err = f.recovery().prepare(t.Context(), f.member, func(context.Context) error { return nil })
	require.ErrorContains(t, err, "cannot read the last revision of the data")
	assert.Empty(t, f.preserved())
	assert.Empty(t, o.changes)
}

// Data that cannot be read completely must count as damaged even if it has passed validation, because a sanity
// validation may miss the damage.
func TestPartlyReadableVolumeIsDamaged(t *testing.T) {
	f, o := memberOfThree(t)
	f.damage()
	o.listing = peers.Unknown
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	f.wait = func(context.Context, int) { cancel() }
	_, err := f.recovery().prepare(ctx, f.member, func(context.Context) error { return nil })
	require.ErrorIs(t, err, context.Canceled)
	assert.Equal(t, peers.Unusable, o.reported)
	assert.Empty(t, f.preserved())
}

// etcd must start with valid data even if the store does not respond and cannot show which copies may be deleted.
func TestFullVolumeDoesNotWaitForAStoreThatHangs(t *testing.T) {
	f := newFilledFixture(t)
	f.recordRestoreTest()
	f.options.Never, f.options.SpoolDir, f.room = true, filepath.Join(f.options.VolumeDir, "spool"), 0
	for _, name := range []string{"new.etcd.aside-" + copyTimes["oldest"], "new.etcd.aside-" + copyTimes["newest"], "spool.aside-" + copyTimes["newest"]} {
		require.NoError(t, os.MkdirAll(filepath.Join(f.volume, name, "member"), 0o700))
	}
	f.store.Inject(memory.Fault{Hang: true})
	synctest.Test(t, func(t *testing.T) {
		f.t = t
		start := time.Now()
		require.NoError(t, f.run())
		assert.LessOrEqual(t, time.Since(start), 5*time.Second)
	})
	f.t = t
	assert.Len(t, f.preservedCopies(), 2)
	assert.NoDirExists(t, f.member.DataDir+".aside-"+copyTimes["oldest"])
}

// lock locks a directory or file until the test ends.
func lock(t *testing.T, path string) {
	t.Helper()
	file, err := os.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { _ = file.Close() })
	require.NoError(t, unix.Flock(int(file.Fd()), unix.LOCK_EX))
}

// Recovery must not remove a directory that another wrapper is building next to a shared data directory.
func TestDirectoryOfAnotherProcessIsKept(t *testing.T) {
	for _, ending := range []string{restoredSuffix, restoredSuffix + unfinishedSuffix} {
		t.Run(ending, func(t *testing.T) {
			f := newFilledFixture(t)
			f.damage()
			theirs := f.member.DataDir + ending
			require.NoError(t, os.MkdirAll(filepath.Join(theirs, "member"), 0o700))
			lock(t, theirs)
			require.ErrorIs(t, f.run(), seed.ErrInUse)
			assert.DirExists(t, filepath.Join(theirs, "member"))
			assert.Empty(t, f.preserved())
		})
	}
}

func TestBuiltDirectoryIsLockedUntilInstalled(t *testing.T) {
	f := newFilledFixture(t)
	f.damage()
	seen := 0
	require.NoError(t, f.runWith(func(action Action) error {
		if action == ValidateBuilt || action == ClaimGeneration || action == InstallData {
			seen++
			_, err := seed.Lock(f.member.DataDir + restoredSuffix)
			require.ErrorIs(t, err, seed.ErrInUse, action)
		}
		return nil
	}))
	assert.Equal(t, 3, seen)
	held, err := seed.Lock(f.member.DataDir)
	require.NoError(t, err, "the lock is released at the end of the run")
	require.NoError(t, held.Close())
	f.requireRestored([]string{"key"}, 1)
}

func TestDataInUseIsNotMoved(t *testing.T) {
	for message, test := range map[string]struct{ lose, happens func(*fixture) }{
		"data appeared in the": {(*fixture).lose, func(f *fixture) { require.NoError(t, os.MkdirAll(filepath.Dir(f.database()), 0o700)) }},
		"an etcd process has ": {(*fixture).damage, func(f *fixture) { lock(t, f.database()) }},
	} {
		f := newFilledFixture(t)
		test.lose(f)
		var files []string
		require.ErrorContains(t, f.runWith(before(PreserveData, func() error { test.happens(f); files = f.files(); return nil })), message)
		assert.Equal(t, files, f.files())
		assert.Empty(t, f.preserved())
	}
}
