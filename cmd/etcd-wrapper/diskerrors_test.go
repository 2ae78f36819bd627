package main_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// diskErrors are errors of the disk under etcd's log: etcd calls them fatal.
var diskErrors = map[string]string{"fdatasync": "EIO", "write": "ENOSPC"}

func TestFaultDiskErrorUnderEtcdIsACrashWithAReason(t *testing.T) {
	t.Parallel()
	needStrace(t)
	for call, errno := range diskErrors {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			trial(t, "serving", errno+" on "+call+" of the log")
			p := newPlace(t)
			require.NoError(t, os.WriteFile(p.termination(), nil, 0o600))
			w := p.start()
			w.awaitReady()
			w.attach(spot{call: call, path: p.wal()}.hit("error=" + errno)...)
			require.Error(t, p.tryPut("key", "value", 2*time.Second))
			assert.Equal(t, 2, w.exit(stopBudget))
			w.assertTruth(2)
			require.NoFileExists(t, p.recordPath())
			p.assertExplained(w, syscallText[errno])
			p.assertNextStart(t, "a disk error")
		})
	}
}

// syscallText is how Go words an error.
var syscallText = map[string]string{
	"EIO": syscall.EIO.Error(), "ENOSPC": syscall.ENOSPC.Error(), "EROFS": syscall.EROFS.Error(), "EPERM": syscall.EPERM.Error(),
}

// wal is the newest segment of etcd's log.
func (p *place) wal() string {
	p.t.Helper()
	segments, err := filepath.Glob(filepath.Join(p.data(), "member", "wal", "*.wal"))
	require.NoError(p.t, err)
	require.NotEmpty(p.t, segments)
	return segments[len(segments)-1]
}

// assertExplained says that people find the reason in the log's last line and in the termination message.
func (p *place) assertExplained(w *wrapper, reason string) {
	p.t.Helper()
	ends := w.log.matching(line{"message": "etcd-wrapper ends: "})
	require.Len(p.t, ends, 1)
	assert.Contains(p.t, ends[0]["message"], reason, "the last line of the log")
	message, err := os.ReadFile(p.termination())
	require.NoError(p.t, err)
	assert.Contains(p.t, string(message), reason, "the termination message")
	p.t.Logf("status %d: %s", w.cmd.ProcessState.ExitCode(), message)
}

func TestFaultRecordThatCannotBeRemovedKeepsEtcdClosed(t *testing.T) {
	t.Parallel()
	needStrace(t)
	for errno, at := range map[string]string{"EROFS": "unlinkat", "EPERM": "unlinkat", "EIO": "fsync"} {
		t.Run(errno, func(t *testing.T) {
			t.Parallel()
			trial(t, "opening", errno+" on "+at+" of the record")
			p := newPlace(t)
			require.NoError(t, os.WriteFile(p.termination(), nil, 0o600))
			p.writeRecord("terminated")
			path := map[string]string{"unlinkat": p.recordPath(), "fsync": p.volume}[at]
			p.straced(spot{call: at, path: path}.hit("error=" + errno)...)
			w := p.start()
			assert.Equal(t, 74, w.exit(soon))
			p.neverOpened()
			p.assertExplained(w, syscallText[errno])
			p.under = nil
			p.assertNextStart(t, errno)
		})
	}
}

func TestFaultRecordThatCannotBeWrittenIsNoCleanEnd(t *testing.T) {
	t.Parallel()
	needStrace(t)
	for call, errno := range map[string]string{"write": "ENOSPC", "fsync": "EIO", "renameat": "EROFS", "openat": "EPERM"} {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			trial(t, "closing", errno+" on "+call+" of the record")
			p := newPlace(t)
			require.NoError(t, os.WriteFile(p.termination(), nil, 0o600))
			p.straced(spot{call: call, path: p.recordPath() + ".tmp"}.hit("error=" + errno)...)
			w := p.start()
			w.awaitReady()
			status, took := w.stop(syscall.SIGTERM)
			assert.Equal(t, 74, status)
			assert.Less(t, took, stopBudget)
			require.NoFileExists(t, p.recordPath())
			p.assertExplained(w, syscallText[errno])
			p.under = nil
			p.assertNextStart(t, errno)
		})
	}
}

func TestFaultSyncThatHangsInTheCloseIsNotWaitedForForEver(t *testing.T) {
	t.Parallel()
	needStrace(t)
	onlyWithFaults(t)
	trial(t, "closing", "fsync of the database hangs")
	p := newPlace(t)
	require.NoError(t, os.WriteFile(p.termination(), nil, 0o600))
	w := p.start()
	w.awaitReady()
	detach := w.attach(spot{call: "fdatasync", path: p.database()}.hit("delay_enter=60000000")...)
	began := time.Now()
	w.signal(syscall.SIGTERM)
	w.awaitLine(line{"message": "etcd-wrapper ends: "})
	assert.Less(t, time.Since(began), stopBudget)
	detach() // a process that has ended stays as long as strace delays it
	status := w.exit(time.Second)
	assert.Equal(t, 124, status)
	w.assertTruth(status)
	p.assertExplained(w, "budget")
	p.assertNextStart(t, "a close that hung")
}
