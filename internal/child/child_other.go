//go:build !linux

package child

import "os/exec"

// bindToParent does nothing because only Linux can kill a child when its parent dies.
func bindToParent(*exec.Cmd) {}

// LowerPriority does nothing because it is implemented only for Linux.
func LowerPriority() {}
