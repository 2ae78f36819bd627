package restore

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"runtime/debug"
	"sync"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store"
)

// Source provides the content of a database.
type Source struct {
	// Snapshot opens the full snapshot: a stock etcd snapshot, which is a database followed by its SHA-256 (32 bytes).
	Snapshot func(context.Context) (io.ReadCloser, error)
	// Rows provides the rows after the full snapshot. It may be nil.
	Rows Rows
	// Recorded returns the bucket of leases that was recorded next after the revision, or nil if unknown. It is
	// called if a key belongs to a lease that all other buckets lack, because it was granted after they were recorded.
	// Without its lease such a key would stay forever. Recorded may be nil.
	Recorded func(context.Context) (*format.Bucket, error)
	// Revision is the revision of the last row of the full snapshot, or 0 if unknown. A snapshot with another one is ErrDamaged: the rows do
	// not follow it.
	Revision int64
	// DatabaseBytes and RowBytes estimate the sizes of the snapshot's database and of the rows, for the check of room and for progress. They
	// may be 0.
	DatabaseBytes, RowBytes int64
}

// Rows passes every row after a full snapshot to row, in order, and returns the other changes: the Buckets that differ
// from the snapshot's, with their current content, and the revision of etcd's scheduled compaction (Compacted), or 0 if it
// is that of the snapshot. A database whose last row is not of Revision is ErrDamaged, unless that is 0.
type Rows func(ctx context.Context, row func(format.Row) error) (archive.Reading, error)

// progressReporter adds up the progress of a build and reports it.
type progressReporter struct {
	report             func(bytes, total int64)
	bytes, total, rows int64
}

func (t *progressReporter) add(bytes, rows int64) {
	t.bytes += bytes
	t.rows += rows
	if t.report != nil {
		t.report(t.bytes, t.total)
	}
}

// Write counts bytes of the database.
func (t *progressReporter) Write(p []byte) (int, error) {
	t.add(int64(len(p)), 0)
	return len(p), nil
}

// chunk is the unit of reading and writing, in bytes.
const chunk = 1 << 20

var (
	// ErrDamaged means that the content cannot be what was once written.
	ErrDamaged = errors.New("the backup is damaged")
	// ErrDigest means that content does not end with its SHA-256.
	ErrDigest = errors.New("the SHA-256 at its end does not match its content: it is truncated or was altered")
)

// fetchSnapshot writes the database of a snapshot as it arrives, and verifies its digest.
func fetchSnapshot(ctx context.Context, open func(context.Context) (io.ReadCloser, error), to io.Writer) error {
	snapshot, err := open(ctx)
	if err != nil {
		return err
	}
	ahead, stop := startReading(snapshot)
	size, err := io.CopyBuffer(to, NewDigestReader(ctx, ahead), make([]byte, chunk))
	stop()
	err = errors.Join(err, snapshot.Close())
	switch {
	case err != nil && !errors.Is(err, ErrDigest):
		return err
	case size == 0 || size%512 != 0: // etcdutl uses the same rule to detect a digest
		return fmt.Errorf("%w: it cannot be a database followed by its digest", ErrDamaged)
	case err != nil:
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return nil
}

// startReading reads chunks in another goroutine, so that decryption and writing use two cores. stop waits for that goroutine.
func startReading(r io.Reader) (ahead io.Reader, stop func()) {
	reader, writer := io.Pipe()
	var reading sync.WaitGroup
	reading.Go(func() {
		chunks := bufio.NewWriterSize(writer, chunk)
		_, err := chunks.ReadFrom(r)
		_ = writer.CloseWithError(cmp.Or(err, chunks.Flush())) // never fails
	})
	return reader, func() {
		_ = reader.Close() // never fails
		reading.Wait()
	}
}

// digestReader holds back the last 32 bytes that it has read, because the size of the content is unknown.
type digestReader struct {
	from *bufio.Reader
	sum  hash.Hash
}

// NewDigestReader reads content that is followed by its SHA-256, 32 bytes, until ctx is done. It returns the content without
// the digest, and io.EOF only if that matches; otherwise ErrDigest.
func NewDigestReader(ctx context.Context, from io.Reader) io.Reader {
	return &digestReader{from: bufio.NewReaderSize(store.ContextReader{Context: ctx, Reader: from}, chunk), sum: sha256.New()}
}

// Read implements io.Reader.
func (d *digestReader) Read(p []byte) (int, error) {
	rest, err := d.from.Peek(sha256.Size + 1)
	switch {
	case format.Ended(err) && !bytes.Equal(rest, d.sum.Sum(nil)):
		return 0, ErrDigest
	case err != nil:
		return 0, err
	}
	n, err := d.from.Read(p[:min(len(p), d.from.Buffered()-sha256.Size)])
	_, _ = d.sum.Write(p[:n]) // never fails
	return n, err
}

// recoverPanic turns panics and memory faults into an error: bbolt maps the file, and a forged page may refer to any
// address.
func recoverPanic(work func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("%w: its database cannot be read: %v", ErrDamaged, cause)
		}
	}()
	return work()
}
