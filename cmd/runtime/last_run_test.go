package runtime

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/server/v3/embed"

	"etcd-wrapper/exitcode"
	"etcd-wrapper/lifecycle"
	"etcd-wrapper/readiness/metrics"
)

// next unlocks the volume of w, as the end of a process would, and returns the runtime of the next run, which has
// locked the volume. If Finish has not been called on w, the next run finds that w was killed.
func next(t *testing.T, w *Runtime) *Runtime {
	t.Helper()
	w.lastRun.busy.Wait()
	require.NoError(t, w.volume.Unlock())
	after := New(w.flags, metrics.New(), zerolog.Nop())
	require.NoError(t, after.Lock())
	after.lastRun.busy.Wait()
	return after
}

func TestLastRun_isReadByTheNext(t *testing.T) {
	w, _ := newRuntime(t, &bytes.Buffer{})
	assert.Equal(t, "none", classOf(w))
	require.NoError(t, w.Lock())

	w = next(t, w)
	class, reason := lastExitOf(w)
	assert.Equal(t, "killed", class)
	assert.Contains(t, reason, "SIGKILL")

	w.Finish(lifecycle.Outcome{Status: exitcode.BadConfig, Reason: "data-dir is missing"})
	w = next(t, w)
	class, reason = lastExitOf(w)
	assert.Equal(t, "failed", class)
	assert.Equal(t, "status 78, data-dir is missing", reason)

	w.Finish(lifecycle.Outcome{Reason: "stopped before etcd was opened"})
	w = next(t, w)
	assert.Equal(t, "terminated", classOf(w))

	w.lastRun.recordServing("")
	w.Finish(lifecycle.Outcome{})
	assert.Equal(t, "unknown", classOf(next(t, w)), "there is no exit record, although the last run served requests")
}

func TestLastRunOn_crash(t *testing.T) {
	w, _ := newRuntime(t, &bytes.Buffer{})
	require.NoError(t, w.Lock())
	w.lastRun.busy.Wait()
	assert.Contains(t, LastRunOn(w.flags.VolumeDir), "it is still running, or it was killed")
	require.NoError(t, os.WriteFile(w.flags.CrashNotePath(), []byte("etcd: no space left on device\n"), 0o600))
	assert.Regexp(t, "crashed: etcd: no space left on device$", LastRunOn(w.flags.VolumeDir))
}

func TestLastRun_crashLoopOnAFullVolume(t *testing.T) {
	w, _ := newRuntime(t, &bytes.Buffer{})
	require.NoError(t, w.Lock())
	w.lastRun.busy.Wait()
	require.NoError(t, os.WriteFile(w.flags.CrashNotePath(), []byte("etcd: no space left on device\n"), 0o600))
	w = next(t, w) // moves the crash note to its .first file; this run is then killed
	w = next(t, w)
	class, reason := lastExitOf(w)
	assert.Equal(t, "killed", class)
	assert.Contains(t, reason, "; the first crash of this crash loop: etcd: no space left on device")

	w.lastRun.recordServing("")
	w = next(t, w)
	_, reason = lastExitOf(w)
	assert.NotContains(t, reason, "loop", "a run that served requests ends the crash loop")

	now := time.Now()
	require.NoError(t, os.Chtimes(w.flags.CrashNotePath()+".first", now, now.Add(time.Hour)))
	w.lastRun.recordServing("")
	_, reason = lastExitOf(next(t, w))
	assert.Contains(t, reason, "; the first crash of this crash loop:", "the crash is newer than the last recorded run")
}

func TestLastRun_stillRunning(t *testing.T) {
	first, _ := newRuntime(t, &bytes.Buffer{})
	require.NoError(t, first.Lock())
	first.lastRun.busy.Wait()
	second := New(first.flags, metrics.New(), zerolog.Nop())
	require.Error(t, second.Lock())
	class, reason := lastExitOf(second)
	assert.Equal(t, "unknown", class)
	assert.Contains(t, reason, "the volume is locked by another process")
	require.NoError(t, first.volume.Unlock())
	require.NoError(t, second.Lock())
	second.lastRun.busy.Wait()
	assert.Equal(t, "killed", classOf(second))
}

func TestFinish_outOfTimeLeavesADump(t *testing.T) {
	w, _ := newRuntime(t, &bytes.Buffer{})
	require.NoError(t, w.Lock())
	w.Finish(lifecycle.Outcome{Status: exitcode.OutOfTime, Reason: "a disk that hangs"})
	left, err := os.ReadFile(w.flags.CrashNotePath())
	require.NoError(t, err)
	assert.Contains(t, string(left), "the shutdown timed out: a disk that hangs\n\ngoroutine ")
	class, reason := lastExitOf(next(t, w))
	assert.Equal(t, "failed", class)
	assert.Contains(t, reason, "status 124, a disk that hangs")
}

func TestLastRun_crashLoopKeepsTheFirstReason(t *testing.T) {
	var log bytes.Buffer
	w, _ := newRuntime(t, &log)
	for _, reason := range []string{"one", "two", "three"} {
		require.NoError(t, w.Lock())
		require.NoError(t, w.note.Leave(reason))
		w.Finish(lifecycle.Outcome{Status: exitcode.Crashed, Reason: reason})
		require.NoError(t, w.volume.Unlock())
		w = New(w.flags, metrics.New(), zerolog.New(&log))
	}
	require.NoError(t, w.Lock())
	w.lastRun.busy.Wait()
	assert.Contains(t, log.String(), `"reason":"three","first_crash":"one"`)
	assert.Equal(t, "one", w.note.FirstReason(time.Time{}))
}

// If the data directory has been removed from the volume, the status and the log must show that a new cluster is
// replacing existing data.
func TestLastRun_lostData(t *testing.T) {
	var log bytes.Buffer
	w, _ := newRuntime(t, &log)
	require.NoError(t, w.Lock())
	dataDir := filepath.Join(w.flags.VolumeDir, "new.etcd")
	config := embed.NewConfig()
	config.Dir = dataDir
	assert.Empty(t, w.warnings(config), "a new volume")
	w.lastRun.recordServing(dataDir)

	w = next(t, w)
	w = next(t, w) // a run that never served must not replace the recorded data directory
	require.Len(t, w.warnings(config), 1)
	assert.Contains(t, w.warnings(config)[0], "an earlier run on this volume served data from it")
	config.ClusterState = embed.ClusterStateFlagExisting
	assert.Empty(t, w.warnings(config), "a member that joins an existing cluster receives the data from the other members")

	config.ClusterState = embed.ClusterStateFlagNew
	require.NoError(t, os.MkdirAll(filepath.Join(dataDir, "member", "snap"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dataDir, "member", "snap", "db"), []byte("x"), 0o600))
	assert.Empty(t, w.warnings(config), "the data directory is not empty")

	config.Dir = "/proc/new.etcd"
	require.Len(t, w.warnings(config), 1)
	assert.Contains(t, w.warnings(config)[0], "are on different volumes")
}

func lastExitOf(r *Runtime) (class, reason string) {
	document := r.Document()
	return document.LastExit, document.LastExitReason
}
