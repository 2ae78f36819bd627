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

// Snapshot is the whole database at one revision. As long as it is open, etcd reuses none of the pages it had then, and
// neither defragmentation nor growth beyond the mapped ten gigabytes can go on: copy it and close it.
type Snapshot struct {
	Revision  int64 // the last one with rows in it; 1, as etcd counts, if there is none
	Compacted int64 // the revision that etcd has compacted up to, or is about to; 0 if it never did
	Size      int64 // bytes

	reader   *Reader
	snapshot backend.Snapshot
	begun    time.Time
	held     time.Duration
}

// Snapshot commits what etcd has in memory and opens a read transaction on all of it. It must be closed.
func (r *Reader) Snapshot() (s *Snapshot, err error) {
	// A database that was closed ends the process when it is asked for a snapshot; when it is read, it does not.
	if _, err := r.view(func(tx backend.UnsafeReader) { mvcc.UnsafeReadScheduledCompact(tx) }); err != nil {
		return nil, err
	}
	database, err := r.current()
	if err != nil {
		return nil, err
	}
	defer r.survive(database, &err)
	s = &Snapshot{reader: r, snapshot: database.Snapshot(), begun: time.Now()}
	r.open.Add(1)
	tx, ok := s.snapshot.(boltTx)
	if !ok {
		_ = s.Close()
		return nil, fmt.Errorf("etcd's snapshot is a %T that cannot be asked for its revision", s.snapshot)
	}
	s.Size = s.snapshot.Size()
	s.Revision = lastRevision(tx)
	s.Compacted, _ = mvcc.UnsafeReadScheduledCompact(boltReader{tx})
	return s, nil
}

// Digests are those of the small buckets in the snapshot, by name. It must be open.
func (s *Snapshot) Digests() map[string]format.Digest {
	digests := map[string]format.Digest{}
	for _, bucket := range small {
		content := readBucket(boltReader{s.snapshot.(boltTx)}, bucket)
		digests[content.Name] = Digest(content)
	}
	return digests
}

func lastRevision(tx boltTx) int64 {
	if rows := tx.Bucket(schema.Key.Name()); rows != nil {
		if key, _ := rows.Cursor().Last(); key != nil {
			return mvcc.BytesToBucketKey(key).Main
		}
	}
	return 1
}

// Close ends the transaction. It may be called again.
func (s *Snapshot) Close() error {
	if s.snapshot == nil {
		return nil
	}
	err := s.snapshot.Close()
	s.snapshot, s.held = nil, time.Since(s.begun)
	s.reader.open.Add(-1)
	return err
}

// Held is how long the transaction was open, once it is closed.
func (s *Snapshot) Held() time.Duration { return s.held }

// WriteTo writes the database, and ends the transaction. It goes past the page cache to a file that can: a database that is left there
// for the kernel to write makes etcd's own flushes wait behind it. It ends early with ctx.
func (s *Snapshot) WriteTo(ctx context.Context, to io.Writer) error {
	defer s.Close()
	file, _ := to.(*os.File)
	written, err := s.snapshot.WriteTo(&paced{ctx: ctx, Writer: to, file: file})
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx) // bbolt keeps the words only
	}
	if err != nil {
		return fmt.Errorf("cannot copy the database at revision %d: %w", s.Revision, err)
	}
	if written != s.Size {
		return fmt.Errorf("%d of %d bytes of the database at revision %d were copied", written, s.Size, s.Revision)
	}
	return s.Close()
}

// paced copies piece by piece, so that the end of its context is noticed in between.
type paced struct {
	io.Writer
	ctx  context.Context
	file *os.File // nil if it is none
}

// piece is how many bytes are copied at a time.
const piece = 4 << 20

func (p *paced) Write(b []byte) (int, error) {
	if p.ctx.Err() != nil {
		return 0, context.Cause(p.ctx)
	}
	return p.Writer.Write(b)
}

// ReadFrom is what io.Copy uses. bbolt reads its data pages through a section of the database's file.
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
