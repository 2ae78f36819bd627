package node

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// containedBy is the environment variable in which Contain passes its process ID to the copy.
const containedBy = "TEST_DEPLOY_CONTAINED_BY"

// Contain runs do in a copy of this process with its own PID and mount namespaces, and returns the exit status for
// TestMain. When the copy exits for any reason, the kernel kills its processes and removes its mounts and network
// namespaces. Contain also removes temporary files. Without root, it runs do in this process.
func Contain(do func() int) int {
	switch {
	case !Root():
		return do()
	case os.Getenv(containedBy) != "":
		if err := ownMounts(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return do()
	}
	runtime.LockOSThread() // the kernel kills the copy when the thread that started it exits
	sweep()
	defer sweep()
	folder, err := ownFolder()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(folder) }() // the next run removes anything left behind
	copied := exec.Command("/proc/self/exe")
	copied.Args, copied.Stdout, copied.Stderr = os.Args, os.Stdout, os.Stderr
	copied.Env = append(os.Environ(), fmt.Sprintf("%s=%d", containedBy, os.Getpid()), "TMPDIR="+folder)
	copied.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	if err := copied.Run(); copied.ProcessState == nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return copied.ProcessState.ExitCode()
}

// Outside runs do only in the original process, not in its copy. Call Outside before Contain.
func Outside(do func() error) error {
	if os.Getenv(containedBy) != "" {
		return nil
	}
	return do()
}

// ownMounts makes later mounts visible only to this process and its children.
func ownMounts() error {
	return errors.Join(
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount("proc", "/proc", "proc", 0, ""),
		os.MkdirAll("/run/netns", 0o755),
		unix.Mount("tmpfs", "/run/netns", "tmpfs", 0, ""),
	)
}

// left is the prefix of the names of a run's control group and directory. The run's process ID follows the prefix, so
// that a later run can remove what a killed run has left behind.
const left = "test-deploy-"

// group returns the name of this run's control group.
func group() string { return left + os.Getenv(containedBy) }

// ownFolder creates the directory for a run's temporary files. It is readable by all users, because it contains the
// pods' volumes.
func ownFolder() (string, error) {
	folder := filepath.Join(os.TempDir(), fmt.Sprint(left, os.Getpid()))
	if err := os.Mkdir(folder, 0o755); err != nil {
		return "", err
	}
	return folder, os.Chmod(folder, 0o755)
}

// sweep removes everything that earlier runs left behind, and the control groups of this run.
func sweep() {
	folders, _ := filepath.Glob(filepath.Join(os.TempDir(), left+"[0-9]*"))
	for _, folder := range folders {
		if pid, ok := owner(folder); ok && !lives(pid) {
			_ = os.RemoveAll(folder) // if it cannot be removed, it stays in the system's temporary directory
		}
	}
	groups, _ := filepath.Glob("/sys/fs/cgroup/*/" + left + "[0-9]*")
	for _, group := range groups {
		if pid, ok := owner(group); ok && (pid == os.Getpid() || !lives(pid)) {
			removeGroup(group)
		}
	}
}

func owner(path string) (pid int, ok bool) {
	pid, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(path), left))
	return pid, err == nil
}

func lives(pid int) bool { return unix.Kill(pid, 0) == nil }

func removeGroup(group string) {
	members, _ := filepath.Glob(group + "/*")
	for _, member := range members {
		_ = os.Remove(member) // a container's group, or a file that belongs to the kernel and cannot be removed
	}
	_ = os.Remove(group)
}
