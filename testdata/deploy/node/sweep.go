package node

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// left is what the control groups and the folder of a run begin with, before its process id: what outlives its processes.
const left = "test-deploy-"

// group is the control group of this run.
func group() string { return left + os.Getenv(containedBy) }

// ownFolder is for the temporary files of a run. Users of pods get through to their volumes.
func ownFolder() (string, error) {
	folder := filepath.Join(os.TempDir(), fmt.Sprint(left, os.Getpid()))
	if err := os.Mkdir(folder, 0o755); err != nil {
		return "", err
	}
	return folder, os.Chmod(folder, 0o755)
}

// sweep takes away what is left of runs that have ended, and the control groups of this process's copy.
func sweep() {
	folders, _ := filepath.Glob(filepath.Join(os.TempDir(), left+"[0-9]*"))
	for _, folder := range folders {
		if pid, ok := owner(folder); ok && !lives(pid) {
			_ = os.RemoveAll(folder) // what stays is among the system's temporary files
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
