package child

import (
	"os"
	"os/exec"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// bindToParent makes the kernel kill the child when this process dies, even after a SIGKILL. An orphaned child would
// keep its lock on the database.
func bindToParent(child *exec.Cmd) {
	child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

const (
	lowest        = 19      // nice value
	threads       = 1       // IOPRIO_WHO_PROCESS, which selects a thread
	onlyWhenIdle  = 3 << 13 // IOPRIO_CLASS_IDLE
	ownThreadsDir = "/proc/self/task"
	maxPasses     = 100 // a thread that has not been lowered yet may start another one during a pass
)

// LowerPriority permanently gives this process the lowest CPU and disk priority. SCHED_IDLE would be too low: on a
// busy machine, the process would take seconds to die after a SIGKILL, and meanwhile etcd's writes would wait for
// kernel locks that the process holds. Call LowerPriority before anything else: on Linux, priorities are per thread
// and only new threads inherit them. Errors are ignored: without permission, the priority remains unchanged.
func LowerPriority() {
	var done []os.DirEntry
	for range maxPasses {
		own, _ := os.ReadDir(ownThreadsDir)
		if slices.EqualFunc(own, done, func(a, b os.DirEntry) bool { return a.Name() == b.Name() }) {
			return
		}
		for _, entry := range own {
			if thread, err := strconv.Atoi(entry.Name()); err == nil {
				_ = unix.Setpriority(unix.PRIO_PROCESS, thread, lowest)
				_, _, _ = unix.Syscall(unix.SYS_IOPRIO_SET, threads, uintptr(thread), onlyWhenIdle)
			}
		}
		done = own
	}
}
