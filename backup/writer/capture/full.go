package capture

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"

	"etcd-wrapper/backup/format"
)

// A Snapshot is the whole database at one revision. While a snapshot is open, etcd cannot reuse the pages of that
// revision, cannot defragment, and cannot grow beyond the mapped 10 GB. Copy and close a snapshot as soon as
// possible.
type Snapshot struct {
	Revision  int64 // last revision with rows; 1 if there is none, as in etcd
	Compacted int64 // etcd's scheduled compaction; 0 if there is none
	Size      int64 // bytes

	reader   *Reader
	snapshot backend.Snapshot
	opened   time.Time
	held     time.Duration
}

// Snapshot makes etcd commit its pending writes and opens a read transaction. The caller must close the snapshot.
func (r *Reader) Snapshot() (s *Snapshot, err error) {
	// Requesting a snapshot of a closed database exits the process, but reading from it only panics.
	if _, err := r.view(func(tx backend.UnsafeReader) { mvcc.UnsafeReadScheduledCompact(tx) }); err != nil {
		return nil, err
	}
	database, err := r.current()
	if err != nil {
		return nil, err
	}
	defer r.recoverPanic(database, &err)
	s = &Snapshot{reader: r, snapshot: database.Snapshot(), opened: time.Now()}
	r.open.Add(1)
	tx, ok := s.snapshot.(readTx)
	if !ok {
		_ = s.Close()
		return nil, fmt.Errorf("cannot read the revision of an etcd snapshot of type %T", s.snapshot)
	}
	s.Size = s.snapshot.Size()
	s.Revision = lastRevision(tx)
	s.Compacted, _ = mvcc.UnsafeReadScheduledCompact(txReader{tx})
	return s, nil
}

// Digests returns the digests of the small buckets by name. The snapshot must be open.
func (s *Snapshot) Digests() map[string]format.Digest {
	digests := map[string]format.Digest{}
	for _, bucket := range small {
		content := readBucket(txReader{s.snapshot.(readTx)}, bucket)
		digests[content.Name] = Digest(content)
	}
	return digests
}

func lastRevision(tx readTx) int64 {
	if rows := tx.Bucket(schema.Key.Name()); rows != nil {
		if key, _ := rows.Cursor().Last(); key != nil {
			return mvcc.BytesToBucketKey(key).Main
		}
	}
	return 1
}

// Close closes the transaction. Close can be called more than once.
func (s *Snapshot) Close() error {
	if s.snapshot == nil {
		return nil
	}
	err := s.snapshot.Close()
	s.snapshot, s.held = nil, time.Since(s.opened)
	s.reader.open.Add(-1)
	return err
}

// Held returns the time for which the transaction was open. The snapshot must be closed.
func (s *Snapshot) Held() time.Duration { return s.held }

// WriteTo writes the database and closes the transaction. When writing to a file, WriteTo bypasses the page cache if
// possible. etcd's flushes would otherwise wait for the kernel to write the cached pages.
func (s *Snapshot) WriteTo(ctx context.Context, to io.Writer) error {
	defer s.Close()
	file, _ := to.(*os.File)
	written, err := s.snapshot.WriteTo(&paced{ctx: ctx, Writer: to, file: file})
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx) // bbolt only keeps the text of the error
	}
	if err != nil {
		return fmt.Errorf("cannot copy the database at revision %d: %w", s.Revision, err)
	}
	if written != s.Size {
		return fmt.Errorf("copied only %d of %d bytes of the database at revision %d", written, s.Size, s.Revision)
	}
	return s.Close()
}

// paced copies data in pieces and stops after the current piece if its context is done.
type paced struct {
	io.Writer
	ctx  context.Context
	file *os.File // set if the writer is a file
}

// piece is the number of bytes to copy at a time.
const piece = 4 << 20

func (p *paced) Write(b []byte) (int, error) {
	if p.ctx.Err() != nil {
		return 0, context.Cause(p.ctx)
	}
	return p.Writer.Write(b)
}

// ReadFrom implements io.ReaderFrom. bbolt passes its data pages as a section of the database file.
func (p *paced) ReadFrom(from io.Reader) (copied int64, err error) {
	if limited, ok := from.(*io.LimitedReader); ok && p.file != nil {
		copied, err = p.direct(limited)
		if !errors.Is(err, errors.ErrUnsupported) {
			return copied, err
		}
	}
	return io.CopyBuffer(onlyWriter{p}, from, make([]byte, piece))
}

// onlyWriter hides ReadFrom from io.Copy.
type onlyWriter struct{ io.Writer }
