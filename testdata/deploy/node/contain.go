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

// containedBy is the variable by which the copy that Contain has started recognizes itself, with the process ID of its parent.
const containedBy = "TEST_DEPLOY_CONTAINED_BY"

// Contain runs do in a copy of this process that has processes and mounts of its own, so that the kernel takes away all that
// was started, mounted or given a name in there when the copy ends, however it ends. Its temporary files go, too. Without root do
// is simply run. It returns the exit status, and is for TestMain.
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
	runtime.LockOSThread() // the copy gets a signal when the thread that started it ends
	sweep()
	defer sweep()
	folder, err := ownFolder()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(folder) }() // leftovers are removed later
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

// Outside runs do before Contain, only in the first of the two processes.
func Outside(do func() error) error {
	if os.Getenv(containedBy) != "" {
		return nil
	}
	return do()
}

// ownMounts keeps what is mounted from here on to this process and those that it starts.
func ownMounts() error {
	return errors.Join(
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount("proc", "/proc", "proc", 0, ""),
		os.MkdirAll("/run/netns", 0o755),
		unix.Mount("tmpfs", "/run/netns", "tmpfs", 0, ""),
	)
}

// left is the prefix of a run's control groups and folder, before its process ID: they outlive its processes.
const left = "test-deploy-"

// group is the control group of this run.
func group() string { return left + os.Getenv(containedBy) }

// ownFolder returns the folder for the temporary files of a run. Users of pods can traverse it to their volumes.
func ownFolder() (string, error) {
	folder := filepath.Join(os.TempDir(), fmt.Sprint(left, os.Getpid()))
	if err := os.Mkdir(folder, 0o755); err != nil {
		return "", err
	}
	return folder, os.Chmod(folder, 0o755)
}

// sweep removes the leftovers of earlier runs, and the control groups of this process's copy.
func sweep() {
	folders, _ := filepath.Glob(filepath.Join(os.TempDir(), left+"[0-9]*"))
	for _, folder := range folders {
		if pid, ok := owner(folder); ok && !lives(pid) {
			_ = os.RemoveAll(folder) // leftovers are in the system's temporary folder
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
		_ = os.Remove(member) // a file of the kernel's, which stays, or a container's group
	}
	_ = os.Remove(group)
}
