package standalone

import (
	"os/exec"
	"syscall"
)

// bindToParent lets the kernel kill the child when this process dies, SIGKILL included: a validation that outlives its
// wrapper would hold a lock on the database.
func bindToParent(child *exec.Cmd) {
	child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
