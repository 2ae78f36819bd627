//go:build !linux

package runtime

// releaseStartup does nothing on this platform.
func releaseStartup() {}
