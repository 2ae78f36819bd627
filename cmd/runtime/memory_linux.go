package runtime

import (
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"syscall"
)

// releaseStartup releases memory that is no longer needed after the start, which reduces the memory usage of idle
// members. releaseStartup returns unused heap pages to the system and unmaps pages of the executable. Pages of the
// executable stay in the page cache, and the kernel maps them again on access.
func releaseStartup() {
	debug.FreeOSMemory()
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return
	}
	for line := range strings.Lines(string(maps)) {
		if fields := strings.Fields(line); len(fields) == 6 && fields[5] == program && !strings.Contains(fields[1], "w") {
			var from, to uintptr
			if _, err := fmt.Sscanf(fields[0], "%x-%x", &from, &to); err == nil {
				_, _, _ = syscall.Syscall(syscall.SYS_MADVISE, from, to-from, syscall.MADV_DONTNEED)
			}
		}
	}
}
