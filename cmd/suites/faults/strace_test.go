package faults_test

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/harness"
)

// spot is a system call on a path, the count-th of its kind.
type spot struct {
	call, path string
	count      int
}

func needStrace(t *testing.T) {
	t.Helper()
	if out, err := exec.Command("strace", "-qqq", "-o", os.DevNull, "true").CombinedOutput(); err != nil {
		t.Skipf("skipped: strace does not work here: %v: %s", err, out)
	}
}

// hit plays a fault at a spot, in strace's words.
func (s spot) hit(fault string) []string {
	return []string{"-P", s.path, "-e", "trace=" + s.call, "-e", "inject=" + s.call + ":" + fault}
}

// straced makes the pod run its programs under strace, as a grandchild: the process is the program itself.
func straced(p *harness.Pod, args ...string) {
	p.Under = append([]string{"strace", "-D", "-f", "-qqq", "-o", tracePath(p)}, args...)
}

func tracePath(p *harness.Pod) string { return filepath.Join(p.Dir, "trace") }

// attach puts strace on a process that runs. What it returns takes strace away again.
func attach(run *harness.Run, args ...string) (detach func()) {
	run.T.Helper()
	pid := strconv.Itoa(run.Cmd.Process.Pid)
	tracer := exec.Command("strace", append([]string{"-f", "-qqq", "-o", os.DevNull, "-p", pid}, args...)...)
	require.NoError(run.T, tracer.Start())
	run.T.Cleanup(func() { // after the process has ended, so this ends, too
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

var traced = regexp.MustCompile(`^\d+ +(\w+)\((?:\d+<([^>]+)>|AT_FDCWD<[^>]*>, "([^"]+)")`)

// trace runs the program through a whole life under strace and returns the calls that succeeded on paths of the volume,
// in the order in which they returned.
func trace(p *harness.Pod) (spots []spot) {
	p.T.Helper()
	straced(p, "-y", "-z", "-e", "trace=unlinkat,renameat,openat,read,write,fsync,fdatasync,flock,close")
	p.StartAndStop()
	p.Under = nil
	counts := map[spot]int{}
	text, err := os.Open(tracePath(p))
	require.NoError(p.T, err)
	defer text.Close() // read only
	for lines := bufio.NewScanner(text); lines.Scan(); {
		found := traced.FindStringSubmatch(lines.Text())
		if found == nil || !strings.HasPrefix(found[2]+found[3], p.Volume) {
			continue
		}
		at := spot{call: found[1], path: found[2] + found[3]}
		counts[at]++
		spots = append(spots, spot{at.call, at.path, counts[at]})
	}
	return spots
}

// ofRecord says that the call belongs to the exit record: to itself, its temporary file or their directory.
func (s spot) ofRecord(p *harness.Pod) bool {
	return s.path == p.RecordPath() || s.path == p.RecordPath()+".tmp" || s.path == p.Volume
}

func (s spot) name() string {
	return s.call + " " + s.where() + " " + strconv.Itoa(s.count)
}

// where says which kind of file a path relative to the volume is.
func (s spot) where() string {
	switch {
	case s.path == ".":
		return "volume"
	case filepath.Ext(s.path) == ".wal":
		return "log"
	default:
		return filepath.Base(s.path)
	}
}
