// Package steady writes and removes large files without making everybody else's flushes wait, those of etcd's log above all, which is
// on the same disk as a rule. What the kernel has gathered in its cache, and what a removed file has taken on the disk, goes with the
// next flush, whoever asks for that: for gigabytes it takes hundreds of milliseconds.
package steady

import (
	"context"
	"errors"
	"os"
	"time"
)

// piece is how many bytes are flushed or given back at a time.
const piece = 4 << 20

// Writer writes to a file from its beginning, and waits for the disk after every few megabytes. It promises nothing: the file has to
// be synced in the end, if it is to last.
type Writer struct {
	File *os.File
	// Drop has the kernel forget what is on the disk: the cache is for etcd's database. It is for files that nobody reads soon.
	Drop bool

	written, flushed int64 // bytes
}

// Write is io.Writer's.
func (w *Writer) Write(p []byte) (int, error) {
	n, err := w.File.Write(p)
	w.written += int64(n)
	if length := w.written - w.flushed; length >= piece {
		flush(w.File, w.flushed, length, w.Drop)
		w.flushed = w.written
	}
	return n, err
}

// Remove removes a file that nobody needs any more, piece by piece from its end, and at once when ctx ends. It rests as long as each piece
// has taken: a disk that is told what it need not keep any more is as busy as one that is written to.
func Remove(ctx context.Context, path string) error {
	_ = shrink(ctx, path) // where that does not go, all goes at once
	return os.Remove(path)
}

// shrink has the disk take back what a file takes, with a flush for each piece, since nobody else's may come for a while.
func shrink(ctx context.Context, path string) error {
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	for size := info.Size(); size > 0 && ctx.Err() == nil; {
		size = max(size-piece, 0)
		began := time.Now()
		if err := errors.Join(file.Truncate(size), file.Sync()); err != nil {
			return err
		}
		select {
		case <-time.After(time.Since(began)):
		case <-ctx.Done():
		}
	}
	return nil
}
