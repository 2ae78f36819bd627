package restore

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"runtime/debug"

	"etcd-wrapper/backup/format"
)

// Source is what a database is rebuilt from.
type Source struct {
	// Snapshot opens the full: a stock etcd snapshot, which is a database and 32 bytes that are its SHA-256.
	Snapshot func(context.Context) (io.ReadCloser, error)
	// Rows gives every row behind the full to row, in order, and returns what else has changed. It may be nil.
	Rows func(ctx context.Context, row func(format.Row) error) (Changes, error)
	// Revision is that of the last row that the full has; 0 if nobody says. A full with another one is ErrDamaged: it is not what it
	// was taken for, and what follows does not follow it.
	Revision int64
	// DatabaseBytes and RowBytes are how large the full's database is, and about how large the rows are. They are for
	// the room that is needed and for the progress that is told, and may be 0.
	DatabaseBytes, RowBytes int64
}

// Changes is what has become of the full beside its rows.
type Changes struct {
	Revision  int64            // of the last row, or the full's if there was none; 0 if nobody says. Another result is ErrDamaged
	Buckets   []*format.Bucket // that differ from the full's, as they are now
	Compacted int64            // etcd's scheduled compaction; 0 for that of the full
	// Later are buckets as they were a moment after the revision. Leases of theirs are added: a key may belong to one
	// that was granted in between, and would stay for ever without it, while a lease without keys just expires.
	Later []*format.Bucket
	// Recorded is the bucket of leases as it was recorded next behind the revision, nil if nobody knows. It is called if a key belongs
	// to a lease that is in none of the others, and may be nil.
	Recorded func(context.Context) (*format.Bucket, error)

	behind []byte // the key of the first row that can be new
}

// Progress is how far a rebuild is.
type Progress struct {
	Bytes, Of int64 // of database and rows; Of is 0 if that is not known, and an estimate if there are rows
	Rows      int64 // inserted
}

// teller reports progress.
type teller struct {
	Progress
	tell func(Progress)
}

func (t *teller) add(bytes, rows int64) {
	t.Bytes += bytes
	t.Rows += rows
	if t.tell != nil {
		t.tell(t.Progress)
	}
}

// chunk is how many bytes are read and written at a time.
const chunk = 1 << 20

// ErrDamaged says that what was read cannot be what was once written.
var ErrDamaged = errors.New("the backup is damaged")

// receive writes a snapshot's database to its file, as it comes, and compares it with the digest behind it.
func receive(ctx context.Context, open func(context.Context) (io.ReadCloser, error), database *receiver) error {
	snapshot, err := open(ctx)
	if err != nil {
		return err
	}
	ahead, stop := readAhead(snapshot)
	_, err = io.CopyBuffer(struct{ io.Writer }{database}, contextReader{ctx, ahead}, make([]byte, chunk))
	stop()
	if err := errors.Join(err, snapshot.Close()); err != nil {
		return err
	}
	return database.verify()
}

// readAhead has another goroutine read whole chunks, so that opening what was sealed and writing it take two cores. stop waits for
// that goroutine.
func readAhead(r io.Reader) (ahead io.Reader, stop func()) {
	reader, writer := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		var err error
		for chunk := make([]byte, chunk); err == nil; {
			filled, n := 0, 0
			for filled < len(chunk) && err == nil {
				n, err = r.Read(chunk[filled:])
				filled += n
			}
			if _, gone := writer.Write(chunk[:filled]); gone != nil {
				return
			}
		}
		_ = writer.CloseWithError(err) // never fails
	}()
	return reader, func() {
		_ = reader.Close() // never fails
		<-done
	}
}

// contextReader ends with its context.
type contextReader struct {
	ctx context.Context
	io.Reader
}

func (r contextReader) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.Reader.Read(p)
}

// receiver writes all but the last 32 bytes, which are the digest. Nobody knows yet how long a snapshot is, so the newest
// 32 bytes are always held back.
type receiver struct {
	to   io.Writer // the file
	sum  hash.Hash
	told *teller
	held []byte
	size int64
}

func (r *receiver) Write(p []byte) (int, error) {
	written := len(p)
	if len(p) < sha256.Size {
		p = append(r.held, p...)
		r.held = nil
	}
	cut := max(len(p)-sha256.Size, 0)
	if err := r.keep(r.held, p[:cut]); err != nil {
		return 0, err
	}
	r.held = bytes.Clone(p[cut:])
	return written, nil
}

func (r *receiver) keep(parts ...[]byte) error {
	for _, part := range parts {
		_, _ = r.sum.Write(part) // never fails
		if _, err := r.to.Write(part); err != nil {
			return err
		}
		r.size += int64(len(part))
		r.told.add(int64(len(part)), 0)
	}
	return nil
}

func (r *receiver) verify() error {
	switch {
	case r.size == 0 || r.size%512 != 0: // as etcdutl judges whether there is a digest
		return fmt.Errorf("%w: it has %d bytes, which is no database and a digest", ErrDamaged, r.size+int64(len(r.held)))
	case !bytes.Equal(r.sum.Sum(nil), r.held):
		return fmt.Errorf("%w: its SHA-256 is %x, and it says %x", ErrDamaged, r.sum.Sum(nil), r.held)
	}
	return nil
}

// guarded turns a panic into an error, memory faults included: bbolt maps the file, and a page that was made up may point
// anywhere.
func guarded(work func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("%w: its database cannot be read: %v", ErrDamaged, cause)
		}
	}()
	return work()
}
