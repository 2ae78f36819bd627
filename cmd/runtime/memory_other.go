//go:build !linux

package runtime

// releaseStartup does nothing: only Linux tells which pages of the program are mapped.
func releaseStartup() {}
