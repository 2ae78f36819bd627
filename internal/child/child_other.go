//go:build !linux

package child

import "os/exec"

// bindToParent does nothing: only Linux can kill a child when its parent dies.
func bindToParent(*exec.Cmd) {}

// LowerPriority does nothing: it is implemented only on Linux.
func LowerPriority() {}
