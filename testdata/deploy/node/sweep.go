package node

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// groups is what every control group begins with that a run makes: the one thing that outlives its processes.
const groups = "ew"

// group is the control group of this run.
func group() string { return groups + os.Getenv(containedBy) }

// sweep takes away the control groups of runs that have ended, this process's copy among them.
func sweep() {
	found, _ := filepath.Glob("/sys/fs/cgroup/*/" + groups + "[0-9]*")
	for _, folder := range found {
		pid, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(folder), groups))
		if err != nil || pid != os.Getpid() && unix.Kill(pid, 0) == nil {
			continue
		}
		members, _ := filepath.Glob(folder + "/*")
		for _, member := range members {
			_ = os.Remove(member) // a file of the kernel's, which stays, or a container's group
		}
		_ = os.Remove(folder)
	}
}
