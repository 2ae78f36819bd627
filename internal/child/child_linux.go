package child

import (
	"os"
	"os/exec"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// bindToParent makes the kernel kill the child when this process dies, by SIGKILL too: a child that outlived it would
// hold a lock on the database.
func bindToParent(child *exec.Cmd) {
	child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

const (
	lowest        = 19      // of nice
	threads       = 1       // IOPRIO_WHO_PROCESS, which means a thread
	onlyWhenIdle  = 3 << 13 // IOPRIO_CLASS_IDLE
	ownThreadsDir = "/proc/self/task"
)

// LowerPriority gives this process the lowest CPU and disk priority, for good. SCHED_IDLE would be too low: on a busy machine
// such a process needs seconds to die after SIGKILL, and etcd's writes wait for the locks that it holds in the
// kernel. Linux has priorities per thread, and a new thread inherits that of its creator, so call it first. Without
// the permission nothing changes, and the machine's load shows that.
func LowerPriority() {
	own, _ := os.ReadDir(ownThreadsDir)
	for _, entry := range own {
		thread, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		_ = unix.Setpriority(unix.PRIO_PROCESS, thread, lowest)
		_, _, _ = unix.Syscall(unix.SYS_IOPRIO_SET, threads, uintptr(thread), onlyWhenIdle)
	}
}
