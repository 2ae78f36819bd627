//go:build !linux

package runtime

// releaseStartup does nothing on systems other than Linux.
func releaseStartup() {}
