package exitcode

import (
	"os"

	"golang.org/x/sys/unix"
)

// reserve allocates room on the volume without changing the file's length, so that the reason of a crash fits even if the
// volume is full by then. A file system that cannot do it, or is full already, has to do without.
func reserve(file *os.File, size int64) {
	_ = unix.Fallocate(int(file.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, size)
}
