// Package steady writes and removes large files without delaying flushes of other files on the same disk, in
// particular those of etcd's log. The next flush of any file also writes what is in the kernel's cache and frees the
// blocks of removed files. For gigabytes that takes hundreds of milliseconds, so this package does both a few
// megabytes at a time.
package steady

import (
	"context"
	"errors"
	"os"
	"time"
)

// piece is the number of bytes that are flushed or freed at a time.
const piece = 4 << 20

// A Writer writes to a file from its start and waits for the disk after every few megabytes. It does not make the
// file durable: call Sync at the end.
type Writer struct {
	File *os.File
	// Drop removes flushed pages from the kernel's cache, which etcd's database needs. Set it for files that are not
	// read soon.
	Drop bool
	// Ahead makes the kernel start writing without waiting for it. Set it for files that are flushed soon.
	Ahead bool

	written, flushed int64 // bytes
}

// Write implements io.Writer.
func (w *Writer) Write(p []byte) (int, error) {
	n, err := w.File.Write(p)
	w.written += int64(n)
	if length := w.written - w.flushed; length >= piece {
		if w.Ahead {
			StartFlush(w.File, w.flushed, length)
		} else {
			flush(w.File, w.flushed, length, w.Drop)
		}
		w.flushed = w.written
	}
	return n, err
}

// Remove removes a file piece by piece from its end. When ctx is done, it removes the rest in one step. After each
// piece it pauses for as long as the piece took, because freeing blocks keeps a disk as busy as writing them.
func Remove(ctx context.Context, path string) error {
	_ = shrink(ctx, path) // after an error, Remove removes the whole file in one step
	return os.Remove(path)
}

// shrink truncates a file to nothing. It flushes after each piece, because the next flush of another file may be a
// long time away.
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
		start := time.Now()
		if err := errors.Join(file.Truncate(size), file.Sync()); err != nil {
			return err
		}
		select {
		case <-time.After(time.Since(start)):
		case <-ctx.Done():
		}
	}
	return nil
}
