// Package steady writes and removes large files without delaying fsyncs of other files on the same disk, especially
// etcd's log. When any file is synced, the kernel also writes other cached data and frees the blocks of removed
// files, which takes hundreds of milliseconds for gigabytes of data. Working in steps of a few megabytes avoids
// such delays.
package steady

import (
	"context"
	"errors"
	"os"
	"time"
)

// piece is the number of bytes to flush or free at a time.
const piece = 4 << 20

// A Writer writes a file sequentially and flushes it to the disk every few megabytes. Writing does not make the file
// durable. Call Sync at the end.
type Writer struct {
	File *os.File
	// Drop removes flushed pages from the page cache to leave memory for etcd's database. Set Drop for files that
	// will not be read soon. Drop has no effect if Ahead is set.
	Drop bool
	// Ahead makes Write start writing to the disk in the background instead of waiting for the disk. Set Ahead for
	// files that will be synced soon.
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

// Remove removes a file piece by piece, starting at the end. When ctx is done, Remove deletes the rest in one step.
// After each piece, Remove pauses for as long as the piece took, because freeing blocks keeps a disk as busy as
// writing them.
func Remove(ctx context.Context, path string) error {
	_ = shrink(ctx, path) // after an error, os.Remove deletes the rest
	return os.Remove(path)
}

// shrink truncates a file to zero bytes piece by piece. It syncs the file after each piece so that the kernel frees
// the blocks of the piece now. Otherwise, the next sync of any file would have to free the blocks of all pieces.
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
