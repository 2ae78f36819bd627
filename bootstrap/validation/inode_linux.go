package validation

import (
	"fmt"
	"io/fs"
	"syscall"
)

// inode is what tells a file from another one in its place, and when it was changed last, be it in name or mode.
func inode(info fs.FileInfo) string {
	if is, ok := info.Sys().(*syscall.Stat_t); ok {
		return fmt.Sprintf("%d %d.%d", is.Ino, is.Ctim.Sec, is.Ctim.Nsec)
	}
	return ""
}
