//go:build !linux

package child

import "os/exec"

// bindToParent does nothing: only Linux can tie a child's life to that of its parent.
func bindToParent(*exec.Cmd) {}

// LowerPriority does nothing: how it is done depends on the system.
func LowerPriority() {}
