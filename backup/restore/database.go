// Package restore builds a database file from a full snapshot and the rows that follow it, without running etcd.
// Restore streams the snapshot to the file, appends the rows, and replaces the small buckets with their later
// content. The result is the same as etcd's database at the requested revision, except that rows deleted by a
// compaction after the snapshot exist again, and the compaction is scheduled, as if etcd had been killed before it
// started the compaction. Recovery and the backup commands use the package.
//
// HashKV computes etcd's hash of a closed database, so that a restored database can be compared with the hash that
// etcd recorded.
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
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
	"go.etcd.io/etcd/server/v3/storage/schema"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/internal/disk"
	"etcd-wrapper/internal/steady"
)

// Options control how a database is built. The zero value selects the defaults.
type Options struct {
	// Above is the highest revision that clients may have seen, or 0. The database continues above this revision, and
	// earlier revisions are marked as compacted, so that watchers list again.
	Above int64
	// Finish, if not nil, is called in the last transaction.
	Finish func(*bolt.Tx) error
	// Inspect, if not nil, checks the database before it is opened for writing, because inconsistent pages would
	// crash this process. See InspectInChild.
	Inspect func(ctx context.Context, path string) error
	// ReservedBytes is the space that must stay free on the volume, in addition to the space for the database.
	ReservedBytes int64
	// Scratch marks a temporary database on a volume that a running etcd uses. The file need not be durable, and
	// etcd's disk access has priority.
	Scratch bool
	// Progress, if not nil, is called many times a second from a single goroutine with the number of database and row
	// bytes processed so far. The total is 0 if unknown, and an estimate if there are rows.
	Progress func(bytes, total int64)
}

// Result describes a restored database.
type Result struct {
	Revision int64         // newest revision, including Options.Above
	Rows     int64         // number of rows inserted after the full snapshot
	Bytes    int64         // size of the database file
	Hashes   []format.Hash // etcd's hashes of compactions since the full snapshot, oldest first
}

// compression is the estimated compression ratio of rows in an archive, by which the size of an object is multiplied.
const compression = 4

// NewSource returns the source for a path through an archive.
func NewSource(a *archive.Archive, path archive.Path) Source {
	source := Source{
		Snapshot:      func(ctx context.Context) (io.ReadCloser, error) { return a.OpenFull(ctx, path.Full) },
		Recorded:      func(ctx context.Context) (*format.Bucket, error) { return a.Recorded(ctx, path, leaseBucket) },
		Revision:      path.Full.Revision,
		DatabaseBytes: path.Full.Database.Bytes,
	}
	for _, object := range path.Objects {
		source.RowBytes += object.Size * compression
	}
	if len(path.Objects) > 0 || path.Revision > path.Full.Revision {
		source.Rows = func(ctx context.Context, row func(format.Row) error) (archive.Reading, error) {
			return a.Read(ctx, path, row)
		}
	}
	return source
}

// Best builds a database from a path through an archive and returns that path. If an object on the path is missing or
// damaged, Best builds from the next best path until one succeeds, or returns the error from the last path. build
// must support retries. onRetry, if not nil, is called before each retry with the error from the previous path; an
// error from onRetry stops Best. An untrusted object is not damaged: Best never falls back to an earlier revision
// because of an untrusted object.
func Best(ctx context.Context, a *archive.Archive, path archive.Path, build func(archive.Path) error, onRetry func(from, to archive.Path, why error) error) (archive.Path, error) {
	for {
		err := build(path)
		if err == nil {
			return path, nil
		}
		other, none := a.Fallback(ctx, path, Blamed(err, path))
		if none != nil {
			return path, err
		}
		if why := errors.Join(err, other.PastEnd); other.Revision < path.Revision && errors.Is(why, format.ErrUntrusted) {
			return path, why
		}
		if onRetry != nil {
			if err := onRetry(path, other, err); err != nil {
				return path, err
			}
		}
		path = other
	}
}

// Blamed converts an error from building a path to an archive.Fault that names the full snapshot, if the error is an
// ErrDamaged without a Fault: the snapshot was then already damaged when it was stored. All other errors are returned
// unchanged.
func Blamed(err error, path archive.Path) error {
	var fault *archive.Fault
	if errors.As(err, &fault) || !errors.Is(err, ErrDamaged) {
		return err
	}
	return &archive.Fault{Object: archive.DataName(path.Full.Generation, path.Full.Name()), Err: err}
}

// Database builds a database in a new file with mode 0600. The file is durable on success and removed on failure. If
// the volume does not have enough space, Database returns ErrNoRoom without fetching anything. Errors from source and
// ctx are returned unchanged.
func Database(ctx context.Context, source Source, path string, options Options) (Result, error) {
	if err := CheckSpace(filepath.Dir(path), source, options); err != nil {
		return Result{}, err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return Result{}, fmt.Errorf("cannot create the database: %w", err)
	}
	result, err := buildDatabase(ctx, source, file, options)
	if closed := file.Close(); err == nil {
		err = closed
	}
	if err != nil {
		err = errors.Join(err, os.Remove(path))
		return Result{}, fmt.Errorf("rebuilding database %s: %w", path, err)
	}
	return result, nil
}

// buildDatabase builds the database in the file without closing it.
func buildDatabase(ctx context.Context, source Source, file *os.File, options Options) (result Result, err error) {
	progress := &progressReporter{report: options.Progress, total: source.DatabaseBytes + source.RowBytes}
	if err := fetchSnapshot(ctx, source.Snapshot, io.MultiWriter(&steady.Writer{File: file, Ahead: !options.Scratch}, progress)); err != nil {
		return Result{}, err
	}
	if options.Inspect != nil {
		if err := options.Inspect(ctx, file.Name()); err != nil {
			return Result{}, err
		}
	}
	err = recoverPanic(func() error {
		result, err = change(ctx, source, file, options, progress)
		return err
	})
	if err != nil {
		return Result{}, err
	}
	if !options.Scratch {
		if err := flush(file); err != nil {
			return Result{}, fmt.Errorf("cannot sync the database to disk: %w", err)
		}
	}
	info, err := file.Stat()
	if err != nil {
		return Result{}, err
	}
	result.Bytes, result.Rows = info.Size(), progress.rows
	return result, nil
}

// flush makes the file and its name durable.
func flush(file *os.File) error {
	if err := file.Sync(); err != nil {
		return err
	}
	return disk.SyncDirectory(filepath.Dir(file.Name()))
}

// change applies the changes since the full snapshot to the database.
func change(ctx context.Context, source Source, file *os.File, options Options, progress *progressReporter) (result Result, err error) {
	changes := options.Above > 0 || options.Finish != nil || source.Rows != nil
	db, err := bolt.Open(file.Name(), 0, boltOptions(source, changes))
	if errors.Is(err, bolterrors.ErrInvalid) || errors.Is(err, bolterrors.ErrChecksum) || errors.Is(err, bolterrors.ErrVersionMismatch) {
		return Result{}, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if err != nil {
		return Result{}, fmt.Errorf("cannot open the database: %w", err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := db.View(func(tx *bolt.Tx) error { return checkLastRevision(tx, source.Revision) }); err != nil {
		return Result{}, err
	}
	if changes {
		if result.Hashes, err = insertAndFinish(ctx, source, db, file, options, progress); err != nil {
			return Result{}, err
		}
	}
	return result, db.View(func(tx *bolt.Tx) error {
		result.Revision, err = lastRevision(tx)
		return err
	})
}

// boltOptions returns options for many writes and a single flush at the end. Only the last transaction writes the
// freelist, which saves the next process that opens the database from searching for free pages.
func boltOptions(source Source, changes bool) *bolt.Options {
	return &bolt.Options{
		ReadOnly:        !changes,
		NoSync:          true,
		NoGrowSync:      true,
		NoFreelistSync:  true,
		FreelistType:    bolt.FreelistMapType,
		InitialMmapSize: int(source.DatabaseBytes + source.RowBytes*rowOverhead + spare),
	}
}

func insertAndFinish(
	ctx context.Context, source Source, db *bolt.DB, file *os.File, options Options, progress *progressReporter,
) ([]format.Hash, error) {
	rows := &rowWriter{ctx: ctx, db: db, file: file, scratch: options.Scratch, progress: progress}
	var changed archive.Reading
	if source.Rows != nil {
		var err error
		if changed, err = rows.writeAll(source.Rows); err != nil {
			return nil, err
		}
	}
	db.NoFreelistSync = false
	return changed.Hashes, db.Update(func(tx *bolt.Tx) error {
		if err := checkLastRevision(tx, changed.Revision); err != nil {
			return err
		}
		if err := applyChanges(tx, changed, options); err != nil || source.Rows == nil {
			return err
		}
		return addMissingLeases(ctx, tx, rows.firstNew, source.Recorded)
	})
}

// applyChanges applies all changes except the rows.
func applyChanges(tx *bolt.Tx, changed archive.Reading, options Options) error {
	if _, err := lastRevision(tx); err != nil {
		return err
	}
	for _, bucket := range changed.Buckets {
		if err := replace(tx, bucket); err != nil {
			return fmt.Errorf("cannot replace bucket %q: %w", bucket.Name, err)
		}
	}
	if err := schedule(tx, changed.Compacted); err != nil {
		return err
	}
	if options.Above > 0 {
		if err := bumpRevision(tx, options.Above); err != nil {
			return err
		}
	}
	if options.Finish == nil {
		return nil
	}
	return options.Finish(tx)
}

// replace replaces the content of a small bucket. The revision of the last finished compaction in the meta bucket is
// kept, because rows that a later compaction deleted exist again.
func replace(tx *bolt.Tx, bucket *format.Bucket) error {
	name := []byte(bucket.Name)
	if bytes.Equal(name, schema.Key.Name()) {
		return errors.New("only row records may change the rows")
	}
	var finished []byte
	isMeta := bytes.Equal(name, schema.Meta.Name())
	if replaced := tx.Bucket(name); replaced != nil {
		finished = bytes.Clone(replaced.Get(schema.FinishedCompactKeyName))
		if err := tx.DeleteBucket(name); err != nil {
			return err
		}
	}
	filled, err := tx.CreateBucket(name)
	for key, value := range bucket.Entries() {
		if err == nil && (!isMeta || !bytes.Equal(key, schema.FinishedCompactKeyName)) {
			err = filled.Put(key, value)
		}
	}
	if err == nil && isMeta && finished != nil {
		err = filled.Put(schema.FinishedCompactKeyName, finished)
	}
	return err
}

// ErrNoRoom means that a volume does not have enough space.
var ErrNoRoom = errors.New("not enough space")

const (
	rowOverhead = 2       // factor; a row slightly larger than half a page takes up a whole page
	spare       = 8 << 20 // bytes, to compensate for rounding
)

// CheckSpace returns an ErrNoRoom that states the required and free space if the volume does not have enough space.
// CheckSpace returns nil if the free space is unknown.
func CheckSpace(dir string, source Source, options Options) error {
	free, _, err := disk.Space(dir)
	if err != nil {
		return nil
	}
	needed := source.DatabaseBytes + source.RowBytes*rowOverhead + options.ReservedBytes + spare
	if free < needed {
		return fmt.Errorf("%w on the volume of %s: %d MiB needed, %d MiB free", ErrNoRoom, dir, (needed+1<<20-1)>>20, free>>20)
	}
	return nil
}

// Source provides the content of a database.
type Source struct {
	// Snapshot opens the full snapshot: a stock etcd snapshot, which is a database followed by its 32-byte SHA-256.
	Snapshot func(context.Context) (io.ReadCloser, error)
	// Rows provides the rows after the full snapshot. Rows may be nil.
	Rows Rows
	// Recorded returns the first lease bucket that was recorded after the revision, or nil if unknown. Recorded is
	// called if a key refers to a lease that is not in any other bucket because the lease was granted later. Without
	// its lease, the key would never expire. Recorded may be nil.
	Recorded func(context.Context) (*format.Bucket, error)
	// Revision is the revision of the last row in the full snapshot, or 0 if unknown. If the last row has a different
	// revision, the error is ErrDamaged, because the rows do not continue the snapshot.
	Revision int64
	// DatabaseBytes and RowBytes are the estimated sizes of the snapshot's database and of the rows, for CheckSpace
	// and for progress. Both may be 0.
	DatabaseBytes, RowBytes int64
}

// Rows passes every row after a full snapshot to row, in order, and returns the other changes: the current content of
// Buckets that differ from the snapshot, and etcd's scheduled compaction (Compacted), or 0 if the compaction in the
// snapshot is still current. If Revision is not 0 and the last row does not match it, the error is ErrDamaged.
type Rows func(ctx context.Context, row func(format.Row) error) (archive.Reading, error)

// progressReporter counts the bytes and rows of a build and reports the progress.
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

// chunk is the buffer size for reads and writes in bytes.
const chunk = 1 << 20

var (
	// ErrDamaged means that the content of a backup differs from what was written.
	ErrDamaged = errors.New("the backup is damaged")
	// ErrDigest means that the trailing SHA-256 does not match the content.
	ErrDigest = errors.New("SHA-256 mismatch: the snapshot is truncated or was modified")
)

// fetchSnapshot writes the database of a snapshot to a writer while downloading the snapshot, and then verifies the
// digest.
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
		return fmt.Errorf("%w: invalid size for a snapshot: %d bytes before the SHA-256 (must be a positive multiple of 512)", ErrDamaged, size)
	case err != nil:
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return nil
}

// startReading reads chunks in another goroutine, so that decryption and writing use two cores. stop waits for the
// goroutine.
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

// digestReader holds back the last 32 bytes it has read, because the size of the content is unknown and these bytes
// may be the digest.
type digestReader struct {
	from *bufio.Reader
	sum  hash.Hash
}

// NewDigestReader reads content followed by its 32-byte SHA-256 until ctx is done. The reader returns the content
// without the digest, and io.EOF only if the digest matches; otherwise ErrDigest.
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

// recoverPanic converts panics and memory faults to errors. bbolt maps the file into memory, and a forged page may
// refer to any address.
func recoverPanic(work func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("%w: cannot read the database: %v", ErrDamaged, cause)
		}
	}()
	return work()
}
