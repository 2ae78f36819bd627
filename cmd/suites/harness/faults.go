package harness

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const (
	// ioctlShutdown is EXT4_IOC_SHUTDOWN from fs/ext4/ext4.h, which immediately shuts down a file system.
	ioctlShutdown = 0x8004587d
	// withoutFlush discards everything that the file system has not written to the disk yet.
	withoutFlush = 2
)

// A Disk is an ext4 file system that replaces a pod's volume and can simulate a power loss.
type Disk struct {
	t     *testing.T
	image string
	point string
}

// NewDisk creates a disk of size bytes. It skips the test if root or loop devices are unavailable.
func NewDisk(p *Pod, size int64) *Disk {
	p.T.Helper()
	d := &Disk{t: p.T, image: filepath.Join(p.Dir, "disk"), point: p.Volume}
	require.NoError(p.T, os.WriteFile(d.image, nil, 0o600))
	require.NoError(p.T, os.Truncate(d.image, size))
	if out, err := exec.Command("mkfs.ext4", "-q", "-F", d.image).CombinedOutput(); err != nil {
		p.T.Skipf("skipped: cannot create an ext4 file system: %v: %s", err, out)
	}
	Mount(p.T, "-o", "loop", d.image, d.point)
	return d
}

// CutPower shuts down the file system, kills the process and mounts the disk again. It suspends the process first,
// because an fsync during an ext4 shutdown succeeds even if the data is lost, and etcd must not acknowledge such a
// write.
func (d *Disk) CutPower(run *Run) {
	d.t.Helper()
	suspend(run)
	point, err := os.Open(d.point)
	require.NoError(d.t, err)
	require.NoError(d.t, unix.IoctlSetPointerInt(int(point.Fd()), ioctlShutdown, withoutFlush))
	require.NoError(d.t, point.Close())
	run.Kill()
	d.run("umount", d.point)
	Eventually(d.t, "the disk is remounted", d.remount)
}

// remount mounts the disk again and reports whether it is usable. The disk remains unusable while another process,
// such as a container that has just started, has the old mount in its namespace.
func (d *Disk) remount() bool {
	if exec.Command("mount", "-o", "loop", d.image, d.point).Run() != nil {
		return false
	}
	probe := filepath.Join(d.point, "probe")
	if os.WriteFile(probe, nil, 0o600) == nil && os.Remove(probe) == nil {
		return true
	}
	d.run("umount", d.point)
	return false
}

// suspend suspends the process and returns once it has stopped or exited.
func suspend(run *Run) {
	run.T.Helper()
	_ = run.Cmd.Process.Signal(syscall.SIGSTOP) // the process may have exited already
	Eventually(run.T, "the process is suspended", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", run.Cmd.Process.Pid))
		return err != nil || strings.Contains(string(stat), ") T ") || strings.Contains(string(stat), ") Z ") ||
			strings.Contains(string(stat), ") t ") // stopped by a tracer
	})
}

// run runs a command until it succeeds, because it fails while another test's process is using the disk.
func (d *Disk) run(name string, args ...string) {
	d.t.Helper()
	Eventually(d.t, name+" succeeds", func() bool { return exec.Command(name, args...).Run() == nil })
}

// Mount mounts a file system until the end of the test. The last argument is the mount point. Mount requires root.
func Mount(t *testing.T, args ...string) {
	t.Helper()
	point := args[len(args)-1]
	if out, err := exec.Command("mount", args...).CombinedOutput(); err != nil {
		t.Skipf("skipped: cannot mount a file system: %v: %s", err, out)
	}
	t.Cleanup(func() { require.NoError(t, exec.Command("umount", "--lazy", point).Run()) })
}

// A CallPoint identifies the Count-th call of the system call Call that affects Path, to inject a fault there.
type CallPoint struct {
	Call, Path string
	Count      int
}

// NeedStrace skips the test if strace does not work on this machine.
func NeedStrace(t *testing.T) {
	t.Helper()
	if out, err := exec.Command("strace", "-qqq", "-o", os.DevNull, "true").CombinedOutput(); err != nil {
		t.Skipf("skipped: strace does not work: %v: %s", err, out)
	}
}

// Inject returns the strace arguments that inject a fault at the call.
func (s CallPoint) Inject(fault string) []string {
	return []string{"-P", s.Path, "-e", "trace=" + s.Call, "-e", "inject=" + s.Call + ":" + fault}
}

// Strace makes the pod run its programs under strace. strace detaches into a grandchild process, so that the test's
// child process is the program itself.
func (p *Pod) Strace(args ...string) {
	p.Under = append([]string{"strace", "-D", "-f", "-qqq", "-o", p.tracePath()}, args...)
}

func (p *Pod) tracePath() string { return filepath.Join(p.Dir, "trace") }

var traced = regexp.MustCompile(`^\d+ +(\w+)\((?:\d+<([^>]+)>|AT_FDCWD<[^>]*>, "([^"]+)")`)

// Trace calls run, during which the pod runs its programs under strace. It returns the successful system calls of the
// given kinds on paths in the volume or in one of the other directories, in the order in which the calls returned.
func (p *Pod) Trace(calls string, run func(), others ...string) (spots []CallPoint) {
	p.T.Helper()
	p.Strace("-y", "-z", "-e", "trace="+calls)
	run()
	p.Under = nil
	counts := map[CallPoint]int{}
	text, err := os.Open(p.tracePath())
	require.NoError(p.T, err)
	defer text.Close() // nothing was written, so a close error is harmless
	for lines := bufio.NewScanner(text); lines.Scan(); {
		found := traced.FindStringSubmatch(lines.Text())
		if found == nil {
			continue
		}
		at := CallPoint{Call: found[1], Path: found[2] + found[3]}
		if !slices.ContainsFunc(append(others, p.Volume), func(below string) bool { return strings.HasPrefix(at.Path, below) }) {
			continue
		}
		counts[at]++
		spots = append(spots, CallPoint{at.Call, at.Path, counts[at]})
	}
	return spots
}
