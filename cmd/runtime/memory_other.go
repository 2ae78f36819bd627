//go:build !linux

package runtime

// releaseStartup does nothing, because only Linux shows which pages of the program are mapped.
func releaseStartup() {}
