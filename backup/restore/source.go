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

// Source provides the content of a database.
type Source struct {
	// Snapshot opens the full snapshot: a stock etcd snapshot, which is a database followed by its SHA-256 (32 bytes).
	Snapshot func(context.Context) (io.ReadCloser, error)
	// Rows passes every row after the full snapshot to row, in order, and returns the other changes. It may be nil.
	Rows func(ctx context.Context, row func(format.Row) error) (Changes, error)
	// Revision is the revision of the last row of the full snapshot, or 0 if unknown. A snapshot with another one is ErrDamaged: the rows do
	// not follow it.
	Revision int64
	// DatabaseBytes and RowBytes estimate the sizes of the snapshot's database and of the rows, for the check of room and for progress. They
	// may be 0.
	DatabaseBytes, RowBytes int64
}

// Changes are the changes since the full snapshot, except for the rows.
type Changes struct {
	Revision  int64            // of the last row, or of the snapshot if there are no rows; 0 if unknown. A database with another one is ErrDamaged
	Buckets   []*format.Bucket // buckets that differ from the snapshot's, with their current content
	Compacted int64            // the revision of etcd's scheduled compaction; 0 if it is that of the snapshot
	// Recorded returns the bucket of leases that was recorded next after the revision, or nil if unknown. It is
	// called if a key belongs to a lease that all other buckets lack, because it was granted after they were recorded.
	// Without its lease such a key would stay forever. Recorded may be nil.
	Recorded func(context.Context) (*format.Bucket, error)

	firstNew []byte // greater than the keys of all rows of the full snapshot
}

// Progress describes the progress of a build.
type Progress struct {
	Bytes, Of int64 // of the database and the rows; Of is 0 if unknown, and an estimate if there are rows
	Rows      int64 // inserted
}

// progressReporter adds up the progress and reports it.
type progressReporter struct {
	Progress
	report func(Progress)
}

func (t *progressReporter) add(bytes, rows int64) {
	t.Bytes += bytes
	t.Rows += rows
	if t.report != nil {
		t.report(t.Progress)
	}
}

// chunk is the unit of reading and writing, in bytes.
const chunk = 1 << 20

// ErrDamaged means that the content cannot be what was once written.
var ErrDamaged = errors.New("the backup is damaged")

// fetchSnapshot writes the database of a snapshot to its file as it arrives, and verifies its digest.
func fetchSnapshot(ctx context.Context, open func(context.Context) (io.ReadCloser, error), database *snapshotWriter) error {
	snapshot, err := open(ctx)
	if err != nil {
		return err
	}
	ahead, stop := startReading(snapshot)
	_, err = io.CopyBuffer(struct{ io.Writer }{database}, contextReader{ctx, ahead}, make([]byte, chunk))
	stop()
	if err := errors.Join(err, snapshot.Close()); err != nil {
		return err
	}
	return database.verify()
}

// startReading reads chunks in another goroutine, so that decryption and writing use two cores. stop waits for that goroutine.
func startReading(r io.Reader) (ahead io.Reader, stop func()) {
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

// contextReader returns the cause of its context once that has ended.
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

// snapshotWriter writes everything but the last 32 bytes, which are the digest. The size of a snapshot is unknown, so
// it always holds back the last 32 bytes it has received.
type snapshotWriter struct {
	to       io.Writer // the file
	sum      hash.Hash
	progress *progressReporter
	held     []byte
	size     int64
}

func (r *snapshotWriter) Write(p []byte) (int, error) {
	written := len(p)
	if len(p) < sha256.Size {
		p = append(r.held, p...)
		r.held = nil
	}
	cut := max(len(p)-sha256.Size, 0)
	if err := r.writeDatabase(r.held, p[:cut]); err != nil {
		return 0, err
	}
	r.held = bytes.Clone(p[cut:])
	return written, nil
}

func (r *snapshotWriter) writeDatabase(parts ...[]byte) error {
	for _, part := range parts {
		_, _ = r.sum.Write(part) // never fails
		if _, err := r.to.Write(part); err != nil {
			return err
		}
		r.size += int64(len(part))
		r.progress.add(int64(len(part)), 0)
	}
	return nil
}

func (r *snapshotWriter) verify() error {
	switch {
	case r.size == 0 || r.size%512 != 0: // etcdutl uses the same rule to detect a digest
		return fmt.Errorf("%w: it has %d bytes, which cannot be a database followed by its digest", ErrDamaged, r.size+int64(len(r.held)))
	case !bytes.Equal(r.sum.Sum(nil), r.held):
		return fmt.Errorf("%w: its SHA-256 is %x, and its digest is %x", ErrDamaged, r.sum.Sum(nil), r.held)
	}
	return nil
}

// recoverPanics turns panics and memory faults into an error: bbolt maps the file, and a forged page may refer to any
// address.
func recoverPanics(work func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("%w: its database cannot be read: %v", ErrDamaged, cause)
		}
	}()
	return work()
}
