//go:build !linux

package seed

// isMountPoint always returns false, because only pods need it.
func isMountPoint(string) bool { return false }
