package exitcode_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/exitcode"
)

// crashEnv is the environment variable that makes the test binary arm the note at the given path and panic.
const crashEnv = "EXITCODE_TEST_CRASH_NOTE"

func TestMain(m *testing.M) {
	if path := os.Getenv(crashEnv); path != "" {
		if err := exitcode.NewCrashNote(path).Arm(false); err != nil {
			panic(err)
		}
		done := make(chan struct{})
		go func() { panic("reason for the crash") }()
		<-done
	}
	os.Exit(m.Run())
}

func TestCrashNote_recordsAPanic(t *testing.T) {
	path := filepath.Join(t.TempDir(), "note")
	child := exec.CommandContext(t.Context(), os.Args[0])
	child.Env = append(os.Environ(), crashEnv+"="+path)
	assert.Error(t, child.Run())
	assert.Equal(t, int(exitcode.Crashed), child.ProcessState.ExitCode(), "Go exits with the documented status")
	assert.Contains(t, exitcode.NewCrashNote(path).PreviousReason(), "reason for the crash")
}

func TestCrashNote_recordsAReason(t *testing.T) {
	path := filepath.Join(t.TempDir(), "note")
	note := exitcode.NewCrashNote(path)
	assert.Empty(t, note.PreviousReason())
	require.NoError(t, note.Leave("not armed"), "Leave does nothing before Arm")
	require.NoError(t, note.Arm(false))
	require.NoError(t, note.Leave("etcd: failed to save\nwith a second line"))
	assert.Equal(t, "etcd: failed to save", exitcode.NewCrashNote(path).PreviousReason())
}

func TestCrashNote_onAFullVolume(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("space can only be reserved on Linux")
	}
	path := filepath.Join(t.TempDir(), "note")
	require.NoError(t, exitcode.NewCrashNote(path).Arm(false))
	info, err := os.Stat(path)
	require.NoError(t, err)
	assert.Zero(t, info.Size(), "an armed note is empty")
	stat, ok := info.Sys().(*syscall.Stat_t)
	require.True(t, ok)
	assert.GreaterOrEqual(t, stat.Blocks*512, int64(16<<10), "space is reserved for the reason")
}

// Discard must remove the note even while a start is still arming it, because a second signal may make the program
// exit at that point.
func TestCrashNote_discardedWhileItIsArmed(t *testing.T) {
	note := exitcode.NewCrashNote(filepath.Join(t.TempDir(), "note"))
	var arming sync.WaitGroup
	arming.Go(func() { assert.NoError(t, note.Arm(false)) })
	require.NoError(t, note.Discard())
	require.NoError(t, note.Leave("forced"))
	arming.Wait()
	require.NoError(t, note.Discard())
}

func TestCrashNote_isRemovedWithoutACrash(t *testing.T) {
	path := filepath.Join(t.TempDir(), "note")
	note := exitcode.NewCrashNote(path)
	require.NoError(t, note.Discard(), "never armed")
	require.NoError(t, note.Arm(false))
	require.NoError(t, note.Discard())
	assert.NoFileExists(t, path)
}

func TestWriteMessage_replacesAnExistingFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "termination-log")
	require.NoError(t, exitcode.WriteMessage(path, "not in a pod"))
	assert.NoFileExists(t, path)

	write(t, path, strings.Repeat("an older message", 100))
	require.NoError(t, exitcode.WriteMessage(path, strings.Repeat("x", 5000)))
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, strings.Repeat("x", 4096), string(content), "Kubernetes keeps at most 4,096 bytes")
}

// Control characters must be escaped, because the text may come from the certificate of another machine.
func TestTerminationMessage_controlCharacters(t *testing.T) {
	path := filepath.Join(t.TempDir(), "termination-log")
	write(t, path, "")
	require.NoError(t, exitcode.WriteMessage(path, "crash: bad name \x1b[2J\nstate: Query\n"))
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, "crash: bad name \\x1b[2J\nstate: Query\n", string(content))

	write(t, path, "panic: \x1b]0;title\a\ngoroutine 1")
	assert.Equal(t, `panic: \x1b]0;title\a`, exitcode.NewCrashNote(path).PreviousReason())

	note := exitcode.NewCrashNote(path)
	require.NoError(t, note.Arm(false))
	require.NoError(t, note.Leave("bad name \x1b[2J"))
	content, err = os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, "bad name \\x1b[2J\n", string(content), "control characters are escaped in the file too")
}

func TestTerminationMessage_truncation(t *testing.T) {
	path := filepath.Join(t.TempDir(), "termination-log")
	write(t, path, "")
	require.NoError(t, exitcode.WriteMessage(path, strings.Repeat("→", 5000)))
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, strings.Repeat("→", 1365), string(content))
}

func TestStatuses_haveMeanings(t *testing.T) {
	for status, want := range map[exitcode.Code]string{
		exitcode.Clean:                         "clean stop",
		exitcode.Crashed:                       "crash",
		exitcode.BadConfig:                     "invalid etcd configuration or impossible request",
		exitcode.SecondSignal(syscall.SIGTERM): "forced by a second signal (terminated)",
		exitcode.Code(99):                      "status 99",
	} {
		assert.Equal(t, want, status.String())
	}
	assert.Equal(t, exitcode.Code(143), exitcode.SecondSignal(syscall.SIGTERM), "128 plus the signal number, as in a shell")
}

func TestCrashLoop_keepsFirstAndLatest(t *testing.T) {
	path := filepath.Join(t.TempDir(), "note")
	crash := func(reason string, loops bool) {
		note := exitcode.NewCrashNote(path)
		require.NoError(t, note.Arm(loops))
		require.NoError(t, note.Leave(reason))
	}
	crash("one", true)
	crash("two", true)
	assert.Equal(t, "one", exitcode.NewCrashNote(path).FirstReason(time.Time{}))
	crash("three", true)
	crash("four", true)
	assert.Equal(t, "one", exitcode.NewCrashNote(path).FirstReason(time.Time{}))
	assert.Equal(t, "three\n", read(t, path+".latest"))
	assert.Equal(t, "four", exitcode.NewCrashNote(path).PreviousReason())

	crash("five", false)
	assert.Equal(t, "four", exitcode.NewCrashNote(path).FirstReason(time.Time{}), "a run served requests, so a new loop started")
	assert.NoFileExists(t, path+".latest")
}

func TestTerminationMessage_preparedUntilWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "termination-log")
	write(t, path, "a longer message of the previous container")
	message := exitcode.NewMessage(path)
	require.NoError(t, message.Prepare("killed in Query"))
	require.NoError(t, message.Prepare("killed"))
	assert.Equal(t, "killed", read(t, path))
	require.NoError(t, message.Finish("clean stop"))
	require.NoError(t, message.Prepare("killed again"))
	assert.Equal(t, "clean stop", read(t, path))
}

func TestLastRun_isReadByTheNextRun(t *testing.T) {
	path := filepath.Join(t.TempDir(), "last")
	_, err := exitcode.ReadLastRun(path)
	require.ErrorIs(t, err, fs.ErrNotExist)
	began := time.Unix(1.8e9, 0).UTC()
	require.NoError(t, exitcode.LastRun{Began: began, Ended: began.Add(1), Status: 70, Reason: "no\x1b " + strings.Repeat("x", 9999)}.Keep(path))
	run, err := exitcode.ReadLastRun(path)
	require.NoError(t, err)
	assert.Equal(t, exitcode.EtcdFailed, run.Status)
	assert.Equal(t, began, run.Began)
	assert.True(t, strings.HasPrefix(run.Reason, "no\\x1b xxx"), "control characters are escaped: %.20s", run.Reason)

	write(t, path, "{")
	run, err = exitcode.ReadLastRun(path)
	require.Error(t, err)
	assert.Zero(t, run)
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(content)
}

func TestLastRun_detectsLostData(t *testing.T) {
	t.Parallel()
	empty, full := func(string) bool { return true }, func(string) bool { return false }
	path := filepath.Join(t.TempDir(), "exit_code.last")
	require.NoError(t, exitcode.LastRun{Served: true, DataDir: "/volume/new.etcd"}.Keep(path))
	run, err := exitcode.ReadLastRun(path)
	require.NoError(t, err)
	assert.True(t, run.Lost("/volume/new.etcd", empty))
	assert.False(t, run.Lost("/volume/new.etcd", full), "the directory is not empty")
	assert.False(t, run.Lost("/volume/other.etcd", empty), "no run has served requests from this directory")
	assert.False(t, exitcode.LastRun{}.Lost("", empty))
}
