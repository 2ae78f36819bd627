package datadir

import (
	"context"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// aheadAtOnce is how much of a file the kernel is asked for at once, in bytes.
const aheadAtOnce = 32 << 20

// readAhead has the kernel read the whole file at path in sequence, in the background, until the returned function is called.
// bbolt maps its file for random access, so that without this each of its pages is fetched from the disk by itself. It
// is a hint: that a file can't be read shows where it is.
func readAhead(ctx context.Context, path string) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var reading sync.WaitGroup
	reading.Go(func() {
		file, err := os.Open(path)
		if err != nil {
			return
		}
		defer file.Close() // nothing was written
		content, err := mapped(file)
		if err != nil {
			return
		}
		defer func() { _ = unix.Munmap(content) }() // what was read stays in memory
		for rest := content; len(rest) > 0 && ctx.Err() == nil; {
			next := rest[:min(aheadAtOnce, len(rest))]
			_ = unix.Madvise(next, unix.MADV_WILLNEED)
			rest = rest[len(next):]
		}
	})
	return func() {
		cancel()
		reading.Wait()
	}
}
