package bootstrap

import (
	"bufio"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"etcd-wrapper/internal/printable"
)

// holder describes the process that has locked a directory, or returns "" if the kernel does not list that process,
// for example if it runs in another container.
func holder(path string) string {
	var directory unix.Stat_t
	locks, err := os.Open("/proc/locks")
	if err != nil || unix.Stat(path, &directory) != nil {
		return ""
	}
	defer locks.Close() // opened read-only, so a close error is harmless
	file := fmt.Sprintf("%02x:%02x:%d", unix.Major(directory.Dev), unix.Minor(directory.Dev), directory.Ino)
	for lines := bufio.NewScanner(locks); lines.Scan(); {
		// 1: FLOCK  ADVISORY  WRITE 4711 08:01:131 0 EOF
		words := strings.Fields(lines.Text())
		if len(words) > 5 && words[1] == "FLOCK" && words[5] == file {
			return "pid " + words[4] + commandOf(words[4])
		}
	}
	return ""
}

// commandOf returns ", " followed by the command of a process, or "" if the command is unknown.
func commandOf(pid string) string {
	command, err := os.ReadFile("/proc/" + pid + "/comm")
	if err != nil {
		return ""
	}
	return ", " + printable.Line(strings.TrimSpace(string(command)))
}
