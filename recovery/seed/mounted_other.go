//go:build !linux

package seed

// isMountPoint always returns false. Only pods need it, and they run on Linux.
func isMountPoint(string) bool { return false }
