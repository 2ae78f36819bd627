package exitcode

import (
	"os"

	"golang.org/x/sys/unix"
)

// reserve allocates space for the crash note without changing the file size, so that a crash can be recorded even
// on a full volume. Errors are ignored, because the file system may already be full or may not support
// reservations.
func reserve(file *os.File, size int64) {
	_ = unix.Fallocate(int(file.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, size)
}
