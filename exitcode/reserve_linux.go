package exitcode

import (
	"os"
	"syscall"
)

// keepSize has a file's blocks allocated without a change of its length (linux/falloc.h).
const keepSize = 1

// reserve allocates room on the volume, so that the reason of a crash fits even if the volume is full by then. A file
// system that cannot, or is full already, has to do without.
func reserve(file *os.File, size int64) { _ = syscall.Fallocate(int(file.Fd()), keepSize, 0, size) }
