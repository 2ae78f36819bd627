package datadir

import (
	"context"
	"os"
	"sync"
)

// aheadAtOnce is how much of a file is read at once, in bytes.
const aheadAtOnce = 1 << 20

// readAhead reads the whole file at path in the background, until the returned function is called. bbolt maps its file
// for random access, so that without this each of its pages is fetched from the disk by itself.
func readAhead(ctx context.Context, path string) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var reading sync.WaitGroup
	reading.Go(func() { intoMemory(ctx, path) })
	return func() {
		cancel()
		reading.Wait()
	}
}

// intoMemory reads a file from its beginning to its end for no more than what the kernel keeps of it. It really reads:
// of what it is only advised to fetch, Linux fetches no more than one window of its own, and forgets the rest. That a file
// can't be read shows where its content is wanted.
func intoMemory(ctx context.Context, path string) {
	file, err := os.Open(path)
	if err != nil {
		return
	}
	defer file.Close() // nothing was written
	for content := make([]byte, aheadAtOnce); ctx.Err() == nil && err == nil; {
		_, err = file.Read(content)
	}
}
