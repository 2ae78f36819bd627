package runtime

import (
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"syscall"
)

// releaseStartup returns memory to the kernel that only the start needed: free pages of the heap, and mapped pages of
// the program file, which stay in the page cache and are mapped again when they are used. This lowers the memory of
// idle members. If it fails, the memory stays as it is.
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
