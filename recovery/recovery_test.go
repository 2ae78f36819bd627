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
func TestValidDataAreServedWhenTheStoreHangs(t *testing.T) {
	w := newFilledWorld(t)
	w.options.FlushSpool = func(ctx context.Context, _ archive.Identity, _ int64) error {
		<-ctx.Done()
		return ctx.Err()
	}
	r := w.recovery()
	r.serveAfter = time.Millisecond
	require.NoError(t, w.prepare(r))
	assert.True(t, r.Progress().Uncompared)
}

func TestValidVolumeIsNotChanged(t *testing.T) {
	w := newFilledWorld(t)
	w.put("another key")
	before := positionOf(t, w.member.DataDir)
	require.NoError(t, w.run())
	assert.Equal(t, before, positionOf(t, w.member.DataDir))
	assert.Len(t, w.generations(), 1)
	assert.NoFileExists(t, filepath.Join(w.volume, recordFile))
}

// If etcd would refuse to create the cluster, recovery must not initialize the store.
func TestClusterThatEtcdRefusesIsNotFounded(t *testing.T) {
	w := newWorld(t)
	w.member.InitialCluster += ",default=http://a:1,b=http://b:1"
	err := w.run()
	require.ErrorContains(t, err, "use the same URLs in both")
	assert.Equal(t, exitcode.BadConfig, w.statusOf(err))
	assert.Empty(t, w.objects(""))
}

func TestRestoreThatWasDoneIsLoggedOnce(t *testing.T) {
	w := newFilledWorld(t)
	w.options.Request = &Request{Target: archive.Target{Revision: 2}, ID: "drop"}
	require.NoError(t, w.run())
	r := w.recovery()
	for range 2 {
		require.NoError(t, w.prepare(r))
	}
	assert.Equal(t, 1, strings.Count(w.log.String(), "restore \\\"drop\\\" has already been done"))
}

func TestProgressWhileTheStoreIsUnreachable(t *testing.T) {
	w := newFilledWorld(t)
	w.store.Inject(memory.Fault{Op: memory.Get, Times: 3, Err: memory.ErrUnreachable})
	r := w.recovery()
	var waits, asks []Progress
	r.wait = func(context.Context, int) { waits = append(waits, r.Progress()) }
	r.interrupt = func(action Action) error {
		if action == AskTheStore {
			asks = append(asks, r.Progress())
		}
		return nil
	}
	require.NoError(t, w.prepare(r))
	require.Len(t, waits, 3)
	for _, is := range waits {
		assert.Equal(t, AskStore, is.State)
		assert.Equal(t, waits[0].Since, is.Since, "since the store cannot be read")
		assert.Contains(t, is.Reason, "memory://test/: store unavailable: dial tcp: connection refused; check that the store is reachable")
		assert.Contains(t, is.Reason, "; next attempt within ")
	}
	for _, is := range asks[1:] {
		assert.Contains(t, is.Reason, "store unavailable", "while it is asked again")
		assert.NotContains(t, is.Reason, "next attempt")
	}
}

func TestSpoolIsUploadedUnlessValidDataHaveIt(t *testing.T) {
	for name, test := range map[string]struct {
		action func(*world)
		has    archive.Identity // identity of the data on the volume
	}{
		"valid":  {func(*world) {}, archive.Identity{Cluster: ours, Generation: 1}},
		"broken": {losses["broken"], archive.Identity{}},
		"empty":  {losses["empty"], archive.Identity{}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFilledWorld(t)
			reach := positionOf(t, w.member.DataDir).HighestRevision
			test.action(w)
			flushes := 0
			w.options.FlushSpool = func(_ context.Context, data archive.Identity, told int64) error {
				flushes++
				assert.Equal(t, test.has, data)
				assert.True(t, told == reach || !data.Known())
				assert.Len(t, w.generations(), 1)
				return nil
			}
			require.NoError(t, w.run())
			assert.Equal(t, 1, flushes)
		})
	}
}

// validated returns a Recovery that uses the given validation.
func validated(t *testing.T, verify datadir.Validation) *Recovery {
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
		r := validated(t, validationOf(result))
		requireStatus(t, r, bootstrap.New)
		requireStatus(t, r, bootstrap.New)
		initialize(t, r)
		requireStatus(t, r, want)
		requireStatus(t, r, bootstrap.New)
	}
}

func TestStatusIsKeptIfTheReaderHasLeft(t *testing.T) {
	r := validated(t, validationOf(nil))
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
	r := validated(t, func(context.Context, string, bootstrap.Mode) ([]string, error) {
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
	require.NoError(t, r.Trigger(t.Context(), bootstrap.Full), "the result was not read yet")
	r.running.Wait()
	require.EqualValues(t, 1, runs.Load())
	requireStatus(t, r, bootstrap.Successful)
}

func TestUnknownModeMeansFull(t *testing.T) {
	for asked, want := range map[bootstrap.Mode]bootstrap.Mode{
		bootstrap.Sanity: bootstrap.Sanity, bootstrap.Full: bootstrap.Full, "": bootstrap.Full, "SANITY": bootstrap.Full,
	} {
		ran := make(chan bootstrap.Mode, 1)
		r := validated(t, func(_ context.Context, _ string, mode bootstrap.Mode) ([]string, error) {
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
		r := validated(t, func(ctx context.Context, _ string, _ bootstrap.Mode) ([]string, error) {
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
	r := validated(t, validationOf(errors.New("db: invalid page")))
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
	r := validated(t, validationOf(nil))
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
	r := validated(t, func(context.Context, string, bootstrap.Mode) ([]string, error) {
		return nil, errors.New("nobody knows what to validate")
	})
	r.options.Config.File = filepath.Join(t.TempDir(), "etcd.yaml")
	initialize(t, r)
	requireStatus(t, r, bootstrap.Failed)
	require.ErrorIs(t, r.WhyFailed(), os.ErrNotExist)
}

// A locked or unreadable database must not be mistaken for a new member.
func TestUnreadableVolumeIsNotEmpty(t *testing.T) {
	w, o := ofThree(t)
	held, err := bolt.Open(w.database(), 0o600, nil)
	require.NoError(t, err)
	defer held.Close()
	_, err = w.recovery().prepare(t.Context(), w.member, func(context.Context) error { return nil })
	require.ErrorContains(t, err, "cannot read the last revision of the data")
	assert.Empty(t, w.preserved())
	assert.Empty(t, o.changes)
}

// Data that cannot be read completely must count as damaged even if it has passed validation, because a sanity
// validation may miss the damage.
func TestPartlyReadableVolumeIsDamaged(t *testing.T) {
	w, o := ofThree(t)
	w.damage()
	o.listing = peers.Unknown
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w.wait = func(context.Context, int) { cancel() }
	_, err := w.recovery().prepare(ctx, w.member, func(context.Context) error { return nil })
	require.ErrorIs(t, err, context.Canceled)
	assert.Equal(t, peers.Ruins, o.holds)
	assert.Empty(t, w.preserved())
}

// etcd must start with the valid data without waiting for the store.
func TestFullVolumeDoesNotWaitForAStoreThatHangs(t *testing.T) {
	w := newFilledWorld(t)
	w.verify()
	w.options.Never, w.options.SpoolDir, w.room = true, filepath.Join(w.options.VolumeDir, "spool"), 0
	for _, name := range []string{"new.etcd.aside-" + copyTimes["oldest"], "new.etcd.aside-" + copyTimes["newest"], "spool.aside-" + copyTimes["newest"]} {
		require.NoError(t, os.MkdirAll(filepath.Join(w.volume, name, "member"), 0o700))
	}
	w.store.Inject(memory.Fault{Hang: true})
	synctest.Test(t, func(t *testing.T) {
		w.t = t
		start := time.Now()
		require.NoError(t, w.run())
		assert.LessOrEqual(t, time.Since(start), 5*time.Second)
	})
	w.t = t
	assert.Len(t, w.preservedCopies(), 2)
	assert.NoDirExists(t, w.member.DataDir+".aside-"+copyTimes["oldest"])
}

// locked locks a directory or file until the test ends.
func locked(t *testing.T, path string) {
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
			w := newFilledWorld(t)
			w.damage()
			theirs := w.member.DataDir + ending
			require.NoError(t, os.MkdirAll(filepath.Join(theirs, "member"), 0o700))
			locked(t, theirs)
			require.ErrorIs(t, w.run(), seed.ErrInUse)
			assert.DirExists(t, filepath.Join(theirs, "member"))
			assert.Empty(t, w.preserved())
		})
	}
}

func TestBuiltDirectoryIsLockedUntilInstalled(t *testing.T) {
	w := newFilledWorld(t)
	w.damage()
	seen := 0
	require.NoError(t, w.runWith(func(action Action) error {
		if action == ProveData || action == ClaimGeneration || action == InstallData {
			seen++
			_, err := seed.Lock(w.member.DataDir + restoredSuffix)
			require.ErrorIs(t, err, seed.ErrInUse, action)
		}
		return nil
	}))
	assert.Equal(t, 3, seen)
	held, err := seed.Lock(w.member.DataDir)
	require.NoError(t, err, "etcd-wrapper locks it now")
	require.NoError(t, held.Close())
	w.requireEnd([]string{"key"}, 1)
}

func TestDataInUseAreNotMoved(t *testing.T) {
	for message, of := range map[string]struct{ lose, happens func(*world) }{
		"data appeared in the": {(*world).lose, func(w *world) { require.NoError(t, os.MkdirAll(filepath.Dir(w.database()), 0o700)) }},
		"a running etcd has ":  {(*world).damage, func(w *world) { locked(t, w.database()) }},
	} {
		w := newFilledWorld(t)
		of.lose(w)
		var there []string
		require.ErrorContains(t, w.runWith(before(SetVolumeAside, func() error { of.happens(w); there = w.files(); return nil })), message)
		assert.Equal(t, there, w.files())
		assert.Empty(t, w.preserved())
	}
}
