package child

import (
	"os"
	"os/exec"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// bindToParent lets the kernel kill the child when this process dies, SIGKILL included: one that outlives its
// wrapper would hold a lock on the database.
func bindToParent(child *exec.Cmd) {
	child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

const (
	threads       = 1       // IOPRIO_WHO_PROCESS, which means a thread
	onlyWhenIdle  = 3 << 13 // IOPRIO_CLASS_IDLE
	ownThreadsDir = "/proc/self/task"
)

// Yield leaves processor and disk to everybody else, for good: this process has what they leave. The lowest niceness would not do, since
// Linux takes a processor on which a nice process runs for a busy one, and may have two threads of etcd share the other for a tenth of a
// second. Linux knows priorities of threads, and new ones have that of the thread that starts them, so it is for the beginning. Where it is
// not permitted nothing changes: that shows in the machine's load.
func Yield() {
	own, _ := os.ReadDir(ownThreadsDir)
	for _, entry := range own {
		thread, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		_ = unix.SchedSetAttr(thread, &unix.SchedAttr{Policy: unix.SCHED_IDLE}, 0)
		_, _, _ = unix.Syscall(unix.SYS_IOPRIO_SET, threads, uintptr(thread), onlyWhenIdle)
	}
}
