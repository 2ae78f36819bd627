//go:build !linux

package bootstrap

// holder is known on Linux only.
func holder(string) string { return "" }
