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
	lowest        = 19      // of nice
	threads       = 1       // IOPRIO_WHO_PROCESS, which means a thread
	onlyWhenIdle  = 3 << 13 // IOPRIO_CLASS_IDLE
	ownThreadsDir = "/proc/self/task"
)

// Yield gives this process the lowest niceness and an idle disk, for good. SCHED_IDLE would not do: where others keep the processors busy, such a
// process does not even end for seconds after it was killed, and what etcd has to write waits for the locks that it holds in the kernel.
// Linux knows priorities of threads, and new ones have that of the thread that starts them, so it is for the beginning. Where it is not
// permitted nothing changes: that shows in the machine's load.
func Yield() {
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
