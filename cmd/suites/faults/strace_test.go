package faults_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/harness"
)

// A spot is a system call on a path at which a process can be killed.
type spot struct{ harness.CallPoint }

// callOn returns the spot of the first system call of the given kind on a path.
func callOn(call, path string) spot {
	return spot{harness.CallPoint{Call: call, Path: path, Count: 1}}
}

// attach attaches strace to a running process and returns a function that detaches it.
func attach(run *harness.Run, args ...string) (detach func()) {
	run.T.Helper()
	pid := strconv.Itoa(run.Cmd.Process.Pid)
	tracer := exec.Command("strace", append([]string{"-f", "-qqq", "-o", os.DevNull, "-p", pid}, args...)...)
	require.NoError(run.T, tracer.Start())
	run.T.Cleanup(func() { // strace exits once the process has exited
		run.Kill()
		_ = tracer.Wait()
	})
	harness.Eventually(run.T, "every thread is traced", func() bool {
		threads, err := filepath.Glob("/proc/" + pid + "/task/*/status")
		require.NoError(run.T, err)
		for _, thread := range threads {
			status, err := os.ReadFile(thread)
			if err == nil && bytes.Contains(status, []byte("TracerPid:\t0\n")) {
				return false
			}
		}
		return true
	})
	return func() { require.NoError(run.T, tracer.Process.Kill()) }
}

// trace starts and stops the program under strace, and returns its successful system calls on paths in the volume.
func trace(p *harness.Pod) (spots []spot) {
	p.T.Helper()
	for _, each := range p.Trace("unlinkat,renameat,openat,read,write,fsync,fdatasync,flock,close", func() { p.StartAndStop() }) {
		spots = append(spots, spot{each})
	}
	return spots
}

// ofRecord reports whether a call affects the exit record, the file that describes the data it belongs to, the
// temporary files of both, or their directory.
func (s spot) ofRecord(p *harness.Pod) bool {
	return s.Path == p.Volume || strings.HasPrefix(s.Path, p.RecordPath()) && slices.Contains([]string{"", ".tmp", ".data", ".data.tmp"}, strings.TrimPrefix(s.Path, p.RecordPath()))
}

func (s spot) name() string {
	return s.Call + " " + s.where() + " " + strconv.Itoa(s.Count)
}

// where returns a description of the file, whose path is relative to the volume.
func (s spot) where() string {
	switch {
	case s.Path == ".":
		return "volume"
	case filepath.Ext(s.Path) == ".wal":
		return "log"
	default:
		return filepath.Base(s.Path)
	}
}
