package exitcode

import (
	"os"

	"golang.org/x/sys/unix"
)

// reserve allocates space on the volume without changing the file's length, so that the reason of a crash can be
// written even if the volume is full by then. Errors are ignored, because the file system may be full or not support
// it.
func reserve(file *os.File, size int64) {
	_ = unix.Fallocate(int(file.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, size)
}
