package node

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// named is what everything on the machine begins with that a process of ours has made.
func named(pid int) string { return fmt.Sprintf("ew%d", pid) }

// sweep takes away what an earlier run has left that was cut off: containers, namespaces, control groups. What belongs to a
// process that lives is not touched.
func sweep() {
	spaces, _ := filepath.Glob("/run/netns/ew*")
	for _, space := range spaces {
		prefix, _, _ := strings.Cut(filepath.Base(space), "-")
		pid, err := strconv.Atoi(strings.TrimPrefix(prefix, "ew"))
		if err != nil || unix.Kill(pid, 0) == nil {
			continue
		}
		sweepGroups(prefix)
		unplug(filepath.Base(space))
	}
}

func sweepGroups(prefix string) {
	members, _ := filepath.Glob("/sys/fs/cgroup/*/" + prefix + "/*/cgroup.procs")
	for _, file := range members {
		content, _ := os.ReadFile(file)
		for _, pid := range bytes.Fields(content) {
			if number, err := strconv.Atoi(string(pid)); err == nil {
				_ = unix.Kill(number, unix.SIGKILL) // it may have ended
			}
		}
		_ = os.Remove(filepath.Dir(file)) // the next sweep finds those that are still ending
	}
	groups, _ := filepath.Glob("/sys/fs/cgroup/*/" + prefix)
	for _, group := range groups {
		_ = os.Remove(group)
	}
}
