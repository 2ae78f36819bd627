package faults_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/harness"
)

// TestFaultKilledAtEverySystemCall kills a run at each of its system calls on the exit record and, with -faults, on
// the database and the log. The record must not be clean unless etcd was closed, and the next start must succeed.
func TestFaultKilledAtEverySystemCall(t *testing.T) {
	t.Parallel()
	harness.NeedStrace(t)
	for _, at := range killSpots(t) {
		t.Run(at.name(), func(t *testing.T) {
			t.Parallel()
			trial(t, "system call on "+at.where(), "SIGKILL in "+at.Call)
			p := harness.NewPod(t)
			p.StartAndStop()
			p.Strace(onVolume(p, at).Inject(fmt.Sprintf("signal=KILL:when=%d", at.Count))...)
			seen := watchOrder(p)
			run := p.Start()
			if awaitReadyOrExit(run) {
				send(syscall.SIGTERM)(run)
			}
			status := run.Exit(harness.Patience)
			assert.Contains(t, []int{0, -1}, status)
			if at.Count == 1 {
				assert.Equal(t, -1, status, "the first call of each kind is always reached")
			}
			assertRecord(run, status, seen)
			p.Under = nil
			assertNextStart(p, t, at.name())
		})
	}
}

// logCalls limits the number of system calls of each kind on etcd's log at which the run is killed.
const logCalls = 4

// killSpots returns the system calls of a run at which to kill other runs, with paths relative to the volume. Without
// -faults, these are only some calls on the exit record.
func killSpots(t *testing.T) (spots []spot) {
	t.Helper()
	p := harness.NewPod(t)
	p.StartAndStop()
	for _, at := range trace(p) {
		ofDatabase := at.Path == p.DBPath()
		ofLog := filepath.Ext(at.Path) == ".wal" && at.Count <= logCalls
		chosen := *faults || at.Call == "renameat" || at.Call == "fsync"
		if chosen && (at.ofRecord(p) || *faults && (ofDatabase || ofLog)) {
			relative, err := filepath.Rel(p.Volume, at.Path)
			require.NoError(t, err)
			spots = append(spots, spot{harness.CallPoint{Call: at.Call, Path: relative, Count: at.Count}})
		}
	}
	require.NotEmpty(t, spots)
	t.Logf("%d system calls at which to kill a run", len(spots))
	return spots
}

// onVolume returns the spot with the path on this pod's volume.
func onVolume(p *harness.Pod, at spot) spot {
	return spot{harness.CallPoint{Call: at.Call, Path: filepath.Join(p.Volume, at.Path), Count: at.Count}}
}

// TestFaultOrderOnDisk checks the order in which changes are flushed. A simulated power loss would not reliably reveal
// an incorrect order.
func TestFaultOrderOnDisk(t *testing.T) {
	t.Parallel()
	harness.NeedStrace(t)
	trial(t, "start and stop", "order of fsync")
	p := harness.NewPod(t)
	p.StartAndStop()
	calls := trace(p)
	record, temporary := p.RecordPath(), p.RecordPath()+".tmp"
	removed := after(t, calls, 0, callOn("unlinkat", record))
	durable := after(t, calls, removed, callOn("fsync", p.Volume))
	assert.Less(t, durable, firstWrite(calls, p.DataDir()), "the record's removal is flushed before etcd's data is written")

	written := after(t, calls, durable, callOn("write", temporary))
	assert.Less(t, last(calls, p.DataDir()), written, "etcd has made its last system call before the record is written")
	synced := after(t, calls, written, callOn("fsync", temporary))
	renamed := after(t, calls, synced, callOn("renameat", temporary))
	after(t, calls, renamed, callOn("fsync", p.Volume))
}

// after returns the index of the next matching call after from.
func after(t *testing.T, calls []spot, from int, wanted spot) int {
	t.Helper()
	at := slices.IndexFunc(calls[from:], func(s spot) bool { return s.Call == wanted.Call && s.Path == wanted.Path })
	require.GreaterOrEqual(t, at, 0, "no %s on %s after call %d", wanted.Call, wanted.Path, from)
	return from + at
}

// firstWrite returns the index of the first call that changes anything under a path. Other calls, such as those that
// check locks, are ignored.
func firstWrite(calls []spot, path string) int {
	changes := []string{"write", "fsync", "fdatasync", "renameat", "unlinkat"}
	return slices.IndexFunc(calls, func(s spot) bool { return strings.HasPrefix(s.Path, path) && slices.Contains(changes, s.Call) })
}

// first returns the index of the first call on a path or on anything below it.
func first(calls []spot, path string) int {
	return slices.IndexFunc(calls, func(s spot) bool { return strings.HasPrefix(s.Path, path) })
}

// last returns the index of the last call on a path or on anything below it.
func last(calls []spot, path string) int {
	backward := slices.Clone(calls)
	slices.Reverse(backward)
	return len(calls) - 1 - first(backward, path)
}
