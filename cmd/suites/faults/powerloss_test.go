package faults_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"etcd-wrapper/cmd/suites/harness"
)

const (
	// ioctlShutdown ends a file system at once: EXT4_IOC_SHUTDOWN of the kernel's fs/ext4/ext4.h.
	ioctlShutdown = 0x8004587d
	// withoutFlush leaves on the disk only what the file system has written by itself or was made to by fsync.
	withoutFlush = 2

	diskSize = 512 << 20
)

// disk is an ext4 file system of its own in the place of the volume. It can lose its power.
type disk struct {
	t     *testing.T
	image string
	point string
}

// newDisk needs root and loop devices.
func newDisk(t *testing.T, p *harness.Pod) *disk {
	t.Helper()
	d := &disk{t: t, image: filepath.Join(p.Dir, "disk"), point: p.Volume}
	require.NoError(t, os.WriteFile(d.image, nil, 0o600))
	require.NoError(t, os.Truncate(d.image, diskSize))
	if out, err := exec.Command("mkfs.ext4", "-q", "-F", d.image).CombinedOutput(); err != nil {
		t.Skipf("skipped: no ext4 can be made here: %v: %s", err, out)
	}
	mount(t, "-o", "loop", d.image, d.point)
	return d
}

// losePower ends the file system under the process, and then the process; afterwards the disk is there again, with what
// was on it. The process stands still first, as everything does without power: ext4 lets an fsync succeed whose data are
// lost if it is shut down meanwhile, and a write must not be acknowledged for that.
func (d *disk) losePower(run *harness.Run) {
	d.t.Helper()
	freeze(run)
	point, err := os.Open(d.point)
	require.NoError(d.t, err)
	require.NoError(d.t, unix.IoctlSetPointerInt(int(point.Fd()), ioctlShutdown, withoutFlush))
	require.NoError(d.t, point.Close())
	run.Kill()
	d.run("umount", d.point)
	d.run("mount", "-o", "loop", d.image, d.point)
}

// freeze returns when the process stands still, or has ended.
func freeze(run *harness.Run) {
	run.T.Helper()
	_ = run.Cmd.Process.Signal(syscall.SIGSTOP) // it may have ended
	harness.Eventually(run.T, "the process stands still", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", run.Cmd.Process.Pid))
		return err != nil || strings.Contains(string(stat), ") T ") || strings.Contains(string(stat), ") Z ") ||
			strings.Contains(string(stat), ") t ") // it is traced
	})
}

// run tries again while what another test has just started still holds the disk.
func (d *disk) run(name string, args ...string) {
	d.t.Helper()
	harness.Eventually(d.t, name+" succeeds", func() bool { return exec.Command(name, args...).Run() == nil })
}

// A record is on the disk before the process ends, and off the disk before etcd opens its data.
func TestFaultPowerLossLeavesTheRecordThatIsTrue(t *testing.T) {
	t.Parallel()
	trial(t, "stopped, serving", "power loss")
	p := harness.NewPod(t)
	d := newDisk(t, p)
	run := p.StartReady()
	p.Put("key", "before")
	run.StopCleanly()

	d.losePower(run)
	assert.Equal(t, "terminated", p.Record(), "the record of a clean end")
	run = p.StartReady()
	p.Put("key", "after")

	d.losePower(run)
	assert.NoFileExists(t, p.RecordPath(), "a record of before etcd was opened")
	run = p.StartReady()
	assert.Equal(t, []string{"full", "sanity", "full"}, p.Sidecar.Modes())
	assert.Equal(t, "after", p.Get("key"))
	run.StopCleanly()
}

// The same as the crash loop, but what the operating system has not written is gone as well.
func TestFaultPowerLossLoop(t *testing.T) {
	t.Parallel()
	cycles := 2
	if *faults {
		cycles = 150
	}
	trial(t, "starting, written to, stopping", fmt.Sprintf("power loss, %d times", cycles))
	p := harness.NewPod(t)
	crashLoop(t, p, cycles, newDisk(t, p).losePower)
}
