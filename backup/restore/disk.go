package restore

import (
	"io"
	"os"

	"etcd-wrapper/internal/steady"
)

// Beside an etcd that serves, the disk is left to that: a scratch database is written little by little. Without one everybody waits for
// the last flush: so the kernel begins to write at once, while the next rows are read.

// wave is after how many bytes of rows the kernel is asked to write.
const wave = 32 << 20

// writer is how a full gets into the file.
func writer(file *os.File, scratch bool) io.Writer {
	if scratch {
		return &steady.Writer{File: file}
	}
	return &early{File: file}
}

// early has the kernel begin to write at once.
type early struct {
	*os.File
	size int64
}

func (e *early) Write(p []byte) (int, error) {
	n, err := e.File.Write(p)
	steady.Begin(e.File, e.size, int64(n))
	e.size += int64(n)
	return n, err
}

// steadily is to be told of the rows that were written to the file.
func steadily(file *os.File, scratch bool) (written func(bytes int64)) {
	var since int64
	return func(bytes int64) {
		if since += bytes; since < wave {
			return
		}
		since = 0
		if scratch {
			steady.Flush(file)
		} else {
			steady.Begin(file, 0, 0)
		}
	}
}
