package recovery_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/harness"
)

// changing lists system calls that change files or flush changes to disk.
const changing = "mkdirat,write,pwrite64,ftruncate,fallocate,fsync,fdatasync,renameat,linkat,unlinkat"

// TestKilledRecovery_sameResult kills recovery at system calls that change the volume or the store. The next start
// must then complete the recovery with the same result.
func TestKilledRecovery_sameResult(t *testing.T) {
	t.Parallel()
	harness.NeedStrace(t)
	for _, damaged := range damages {
		t.Run(damaged.name, func(t *testing.T) {
			t.Parallel()
			s := newDamagedMember(t, damaged.damage, damaged.copies)
			spots := s.spots(t)
			for i := 0; i < len(spots); i += stepUnlessWhole(len(spots)/3 + 1) {
				s.killAt(t, spots[i])
			}
			t.Logf("%d system calls at which recovery can be killed", len(spots))
		})
	}
}

// spots returns the system calls at which to kill a recovery: those that change recovery's own record, the directories
// that it creates and moves, or the store.
func (s *damagedMember) spots(t *testing.T) (spots []harness.CallPoint) {
	t.Helper()
	for _, at := range s.Trace(changing, func() { s.StartReady().Kill() }, s.dir) {
		if s.ofRecovery(at.Path) {
			spots = append(spots, at)
		}
	}
	// ofRecovery does not match the data directory itself, which recovery renames.
	return append(spots, harness.CallPoint{Call: "renameat", Path: s.DataDir(), Count: 1})
}

func (s *damagedMember) ofRecovery(path string) bool {
	own := []string{s.Volume, filepath.Join(s.Volume, "recovery.json"), filepath.Join(s.Volume, "recovery.json.tmp")}
	named := !strings.HasPrefix(filepath.Base(path), ".new-") // temporary names differ in every run
	return slices.Contains(own, path) || strings.HasPrefix(path, s.DataDir()+".") || strings.HasPrefix(path, s.dir) && named
}

// killAt kills a recovery at a system call and requires that the next start completes it.
func (s *damagedMember) killAt(t *testing.T, at harness.CallPoint) {
	t.Helper()
	where := fmt.Sprintf("%s on %s, number %d", at.Call, strings.TrimPrefix(at.Path, s.Volume), at.Count)
	s.reset()
	s.Strace(at.Inject(fmt.Sprintf("signal=KILL:when=%d", at.Count))...)
	run := s.Start()
	killed := false
	harness.Eventually(t, "the program is killed or ready: "+where, func() bool {
		select {
		case <-run.Ended:
			killed = true
		default:
		}
		return killed || run.Readyz() == 200
	})
	run.Kill()
	s.Under = nil
	if at.Count == 1 { // later calls may not be reached, because strace counts the calls of each thread separately
		assert.True(t, killed, where)
	}
	s.requireRecovered(t, where)
}

// TestRecovery_syncOrder checks the order of system calls: the restored data and recovery's record must be flushed to
// disk before the old data is replaced. A simulated power loss would not reliably reveal an incorrect order.
func TestRecovery_syncOrder(t *testing.T) {
	t.Parallel()
	harness.NeedStrace(t)
	s := newDamagedMember(t, damages[1].damage, 1)
	calls := s.Trace(changing, func() { s.StartReady().Kill() })
	position, built := filepath.Join(s.Volume, "recovery.json"), s.DataDir()+".restored"
	flushed := []string{
		built + ".restoring/member/snap/db", built + ".restoring/member/snap", built + ".restoring/member/wal", built + ".restoring/member", built + ".restoring",
	}
	renamed := next(t, calls, 0, "renameat", built+".restoring")
	for _, path := range flushed {
		assert.Less(t, next(t, calls, 0, "fsync", path), renamed, path)
		assert.Equal(t, -1, indexFrom(calls, renamed, "write", path))
	}
	recorded := next(t, calls, next(t, calls, renamed, "fsync", s.Volume), "fsync", position+".tmp")
	recorded = next(t, calls, next(t, calls, recorded, "renameat", position+".tmp"), "fsync", s.Volume)
	moved := next(t, calls, recorded, "renameat", s.DataDir())
	installed := next(t, calls, next(t, calls, moved, "fsync", s.Volume), "renameat", built)
	next(t, calls, next(t, calls, installed, "fsync", s.Volume), "fsync", position+".tmp")
	require.Less(t, installed, indexFrom(calls, installed, "fdatasync", s.DBPath()), "etcd opens the data after it has been installed")
}

// next returns the index of the first matching call at or after an index.
func next(t *testing.T, calls []harness.CallPoint, from int, call, path string) int {
	t.Helper()
	at := indexFrom(calls, from, call, path)
	require.GreaterOrEqual(t, at, 0, "no %s on %s after call %d", call, path, from)
	return at
}

func indexFrom(calls []harness.CallPoint, from int, call, path string) int {
	at := slices.IndexFunc(calls[from:], func(s harness.CallPoint) bool { return s.Call == call && s.Path == path })
	if at < 0 {
		return -1
	}
	return from + at
}

const diskSize = 1 << 30

// TestPowerLoss_sameResult cuts the power after individual steps of a recovery. The next start must then complete the
// recovery with the same result.
func TestPowerLoss_sameResult(t *testing.T) {
	t.Parallel()
	for _, damaged := range damages {
		t.Run(damaged.name, func(t *testing.T) {
			t.Parallel()
			var disk *harness.Disk
			s := newDamagedMember(t, damaged.damage, damaged.copies)
			disk = harness.NewDisk(s.Pod, diskSize)
			for steps, more := 1, true; more; steps += stepUnlessWhole(5) {
				s.reset()
				run := s.Start()
				harness.Eventually(t, "recovery has logged the step or the member is ready", func() bool { return s.steps(run) >= steps || run.Readyz() == 200 })
				more = run.Readyz() != 200
				disk.CutPower(run)
				s.requireRecovered(t, fmt.Sprintf("after %d steps", steps))
			}
		})
	}
}

// steps returns the number of steps that recovery has logged.
func (s *damagedMember) steps(run *harness.Run) int {
	return len(run.Log.FindText(`"message":"recovery: `))
}
