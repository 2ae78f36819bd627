package faults_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/harness"
)

// diskErrors maps system calls on etcd's log to errors that are fatal for etcd.
var diskErrors = map[string]string{"fdatasync": "EIO", "write": "ENOSPC"}

func TestFaultDiskError_crashWithReason(t *testing.T) {
	t.Parallel()
	harness.NeedStrace(t)
	for call, errno := range diskErrors {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			trial(t, "serving", errno+" on "+call+" of the log")
			p := harness.NewPod(t)
			p.ExpectTerminationMessage()
			run := p.StartReady()
			attach(run, harness.CallPoint{Call: call, Path: wal(p)}.Inject("error="+errno)...)
			require.Error(t, p.TryPut("key", "value", 2*time.Second))
			assert.Equal(t, 2, run.Exit(harness.StopBudget))
			assertRecord(run, 2, nil)
			require.NoFileExists(t, p.RecordPath())
			assertExplained(p, run, syscallText[errno])
			assertNextStart(p, t, "a disk error")
		})
	}
}

// syscallText maps error names to the text with which Go describes the errors.
var syscallText = map[string]string{
	"EIO": syscall.EIO.Error(), "ENOSPC": syscall.ENOSPC.Error(), "EROFS": syscall.EROFS.Error(), "EPERM": syscall.EPERM.Error(),
}

// wal returns the newest segment file of etcd's log.
func wal(p *harness.Pod) string {
	p.T.Helper()
	segments, err := filepath.Glob(filepath.Join(p.DataDir(), "member", "wal", "*.wal"))
	require.NoError(p.T, err)
	require.NotEmpty(p.T, segments)
	return segments[len(segments)-1]
}

// assertExplained checks that the last log line and the termination message contain the reason for the exit.
func assertExplained(p *harness.Pod, run *harness.Run, reason string) {
	p.T.Helper()
	ends := run.Log.Matching(harness.Line{"message": "etcd-wrapper is exiting: "})
	require.Len(p.T, ends, 1)
	assert.Contains(p.T, ends[0]["message"], reason, "the last log line")
	message, err := os.ReadFile(p.TerminationMessage())
	require.NoError(p.T, err)
	assert.Contains(p.T, string(message), reason, "the termination message")
	p.T.Logf("status %d: %s", run.Cmd.ProcessState.ExitCode(), message)
}

func TestFaultUnremovableRecord_keepsEtcdClosed(t *testing.T) {
	t.Parallel()
	harness.NeedStrace(t)
	for errno, at := range map[string]string{"EROFS": "unlinkat", "EPERM": "unlinkat", "EIO": "fsync"} {
		t.Run(errno, func(t *testing.T) {
			t.Parallel()
			trial(t, "opening", errno+" on "+at+" of the record")
			p := harness.NewPod(t)
			p.ExpectTerminationMessage()
			p.WriteRecord("terminated")
			path := map[string]string{"unlinkat": p.RecordPath(), "fsync": p.Volume}[at]
			p.Strace(harness.CallPoint{Call: at, Path: path}.Inject("error=" + errno)...)
			run := p.Start()
			assert.Equal(t, 74, run.Exit(harness.Patience))
			p.RequireNoData()
			assertExplained(p, run, syscallText[errno])
			p.Under = nil
			assertNextStart(p, t, errno)
		})
	}
}

func TestFaultUnwritableRecord_isNoCleanExit(t *testing.T) {
	t.Parallel()
	harness.NeedStrace(t)
	for call, errno := range map[string]string{"write": "ENOSPC", "fsync": "EIO", "renameat": "EROFS", "openat": "EPERM"} {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			trial(t, "closing", errno+" on "+call+" of the record")
			p := harness.NewPod(t)
			p.ExpectTerminationMessage()
			p.Strace(harness.CallPoint{Call: call, Path: p.RecordPath() + ".tmp"}.Inject("error=" + errno)...)
			run := p.StartReady()
			status, took := run.Stop(syscall.SIGTERM)
			assert.Equal(t, 74, status)
			assert.Less(t, took, harness.StopBudget)
			require.NoFileExists(t, p.RecordPath())
			assertExplained(p, run, syscallText[errno])
			p.Under = nil
			assertNextStart(p, t, errno)
		})
	}
}

func TestFaultHangingSync_doesNotBlockClose(t *testing.T) {
	t.Parallel()
	harness.NeedStrace(t)
	onlyWithFaults(t)
	trial(t, "closing", "fsync of the database hangs")
	p := harness.NewPod(t)
	p.ExpectTerminationMessage()
	run := p.StartReady()
	detach := attach(run, harness.CallPoint{Call: "fdatasync", Path: p.DBPath()}.Inject("delay_enter=60000000")...)
	watch := harness.StartWatch()
	run.Signal(syscall.SIGTERM)
	run.AwaitLine(harness.Line{"message": "etcd-wrapper is exiting: "})
	assert.Less(t, watch.Duration(), harness.StopBudget)
	detach() // otherwise, strace's delay would also keep the exiting process alive
	status := run.Exit(harness.AbortBudget)
	assert.Equal(t, 124, status)
	assertRecord(run, status, nil)
	assertExplained(p, run, "the shutdown timed out")
	assertNextStart(p, t, "a hanging close")
}
