//go:build !linux

package seed

// isMountPoint always returns false: only pods need it.
func isMountPoint(string) bool { return false }
