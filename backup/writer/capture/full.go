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

// A Snapshot is the whole database at one revision. While it is open, etcd reuses no page that it had then, and can
// neither defragment nor grow beyond the mapped ten gigabytes: copy it and close it.
type Snapshot struct {
	Revision  int64 // last revision with rows; 1, as in etcd, if there is none
	Compacted int64 // etcd's scheduled compaction; 0 if there was none
	Size      int64 // bytes

	reader   *Reader
	snapshot backend.Snapshot
	opened   time.Time
	held     time.Duration
}

// Snapshot makes etcd commit what it has in memory and opens a read transaction. The snapshot must be closed.
func (r *Reader) Snapshot() (s *Snapshot, err error) {
	// A closed database exits the process when a snapshot is requested, but only panics when it is read.
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

// Close closes the transaction. Further calls do nothing.
func (s *Snapshot) Close() error {
	if s.snapshot == nil {
		return nil
	}
	err := s.snapshot.Close()
	s.snapshot, s.held = nil, time.Since(s.opened)
	s.reader.open.Add(-1)
	return err
}

// Held returns how long the transaction was open. The snapshot must be closed.
func (s *Snapshot) Held() time.Duration { return s.held }

// WriteTo writes the database and closes the transaction. If it can, it writes to a file without the page cache:
// etcd's flushes would wait for the kernel to write the database from there.
func (s *Snapshot) WriteTo(ctx context.Context, to io.Writer) error {
	defer s.Close()
	file, _ := to.(*os.File)
	written, err := s.snapshot.WriteTo(&paced{ctx: ctx, Writer: to, file: file})
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx) // bbolt keeps only the text of the error
	}
	if err != nil {
		return fmt.Errorf("cannot copy the database at revision %d: %w", s.Revision, err)
	}
	if written != s.Size {
		return fmt.Errorf("copied only %d of %d bytes of the database at revision %d", written, s.Size, s.Revision)
	}
	return s.Close()
}

// paced copies in pieces and stops between two of them once its context is done.
type paced struct {
	io.Writer
	ctx  context.Context
	file *os.File // set if the writer is a file
}

// piece is the number of bytes copied at a time.
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
