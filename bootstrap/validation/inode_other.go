//go:build !linux

package validation

import "io/fs"

// inode is known on Linux only; elsewhere size and time have to do.
func inode(fs.FileInfo) string { return "" }
