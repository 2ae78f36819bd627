package child

import (
	"os/exec"
	"syscall"
)

// bindToParent lets the kernel kill the child when this process dies, SIGKILL included: one that outlives its
// wrapper would hold a lock on the database.
func bindToParent(child *exec.Cmd) {
	child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
