package steady

import (
	"os"

	"golang.org/x/sys/unix"
)

// StartFlush makes the kernel start writing length bytes of the cached file content to the disk, or everything from
// offset on if length is 0. Calling StartFlush regularly leaves little to sync at the end. Errors are ignored
// because StartFlush is only a hint.
func StartFlush(file *os.File, offset, length int64) {
	_ = unix.SyncFileRange(int(file.Fd()), offset, length, unix.SYNC_FILE_RANGE_WRITE)
}

// Flush waits until the kernel has written all cached pages of a file. Flush does not make the file durable.
func Flush(file *os.File) { flush(file, 0, 0, false) }

func flush(file *os.File, offset, length int64, drop bool) {
	const all = unix.SYNC_FILE_RANGE_WAIT_BEFORE | unix.SYNC_FILE_RANGE_WRITE | unix.SYNC_FILE_RANGE_WAIT_AFTER
	_ = unix.SyncFileRange(int(file.Fd()), offset, length, all)
	if drop {
		_ = unix.Fadvise(int(file.Fd()), offset, length, unix.FADV_DONTNEED)
	}
}
