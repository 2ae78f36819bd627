//go:build !linux

package seed

// isMountPoint always returns false. Only pods need the check, and pods run on Linux.
func isMountPoint(string) bool { return false }
