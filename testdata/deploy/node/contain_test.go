package node

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// leaving is the environment variable that makes the test binary call leave. It contains the directory to mount.
const leaving = "TEST_DEPLOY_LEAVING"

func TestMain(m *testing.M) {
	if folder := os.Getenv(leaving); folder != "" {
		os.Exit(Contain(func() int { return leave(folder) }))
	}
	os.Exit(m.Run())
}

// leave creates the same kinds of objects as the tests in package stories, and then waits until it is killed.
func leave(folder string) int {
	started := exec.Command("sleep", "infinity")
	started.Stdout = os.Stdout
	_, err := newNetwork("left")
	for _, failed := range []error{
		err, started.Start(), unix.Mount("tmpfs", folder, "tmpfs", 0, ""), os.MkdirAll(filepath.Join(aController(), group(), "left"), 0o755),
	} {
		if failed != nil {
			fmt.Println(failed)
			return 1
		}
	}
	fmt.Println("ready")
	select {}
}

// aController returns the mount point of a cgroup hierarchy, which is the memory controller's with cgroup v1.
func aController() string {
	found, _ := filepath.Glob("/sys/fs/cgroup/memory*")
	if len(found) == 0 {
		return "/sys/fs/cgroup"
	}
	return found[0]
}

func TestKilledRun_isCleanedUp(t *testing.T) {
	if !Root() {
		t.Skip("SKIPPED: only root can create namespaces")
	}
	folder := t.TempDir()
	run := exec.Command("/proc/self/exe")
	run.Env = append(os.Environ(), leaving+"="+folder)
	stdout, err := run.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, run.Start())
	lines := bufio.NewReader(stdout)
	line, err := lines.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "ready\n", line)
	require.FileExists(t, filepath.Join("/proc", fmt.Sprint(run.Process.Pid), "stat"))

	require.NoError(t, run.Process.Kill())
	_, err = io.ReadAll(lines)
	require.NoError(t, err, "all processes that could write to the pipe must have exited")
	_ = run.Wait() // reports that the process was killed
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(t, err)
	assert.NotContains(t, string(mounts), folder)
	assert.NoFileExists(t, "/run/netns/left")
	sweep()
	assert.NoDirExists(t, filepath.Join(aController(), fmt.Sprint(left, run.Process.Pid)))
	assert.NoDirExists(t, filepath.Join(os.TempDir(), fmt.Sprint(left, run.Process.Pid)))
}
