package steady

import (
	"os"

	"golang.org/x/sys/unix"
)

// Begin has the kernel begin to write what is in its cache of so many bytes, or of all from the offset on if length is 0, so that there is
// little left to flush at the end. It promises nothing, and so does not say whether it did.
func Begin(file *os.File, offset, length int64) {
	_ = unix.SyncFileRange(int(file.Fd()), offset, length, unix.SYNC_FILE_RANGE_WRITE)
}

// Flush waits until all of a file that is in the kernel's cache is on its way out of it. It promises no more than Writer does.
func Flush(file *os.File) { flush(file, 0, 0, false) }

func flush(file *os.File, offset, length int64, drop bool) {
	const all = unix.SYNC_FILE_RANGE_WAIT_BEFORE | unix.SYNC_FILE_RANGE_WRITE | unix.SYNC_FILE_RANGE_WAIT_AFTER
	_ = unix.SyncFileRange(int(file.Fd()), offset, length, all)
	if drop {
		_ = unix.Fadvise(int(file.Fd()), offset, length, unix.FADV_DONTNEED)
	}
}
