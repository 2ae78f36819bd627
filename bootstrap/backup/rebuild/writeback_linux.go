package rebuild

import (
	"os"

	"golang.org/x/sys/unix"
)

// startWriting has the kernel begin to write what is in its cache, so that there is little left to flush at the end. It
// promises nothing, and so does not say whether it did.
func startWriting(file *os.File, offset, length int64) {
	_ = unix.SyncFileRange(int(file.Fd()), offset, length, unix.SYNC_FILE_RANGE_WRITE)
}
