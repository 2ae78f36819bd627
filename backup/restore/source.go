package restore

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"

	"go.etcd.io/etcd/server/v3/storage/schema"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
)

// leaseBucket is the name of etcd's bucket of leases.
var leaseBucket = string(schema.Lease.Name())

// compression is about how much smaller rows are in an archive.
const compression = 4

// From is the source at the end of a path through an archive. What was read of the archive, save for the rows, is stored
// in reading, if it is not nil, when the rows have been read.
func From(a *archive.Archive, path archive.Path, reading *archive.Reading) Source {
	source := Source{
		Snapshot:      func(ctx context.Context) (io.ReadCloser, error) { return a.OpenFull(ctx, path.Full) },
		Revision:      path.Full.Revision,
		DatabaseBytes: path.Full.Database.Bytes,
	}
	if len(path.Objects) == 0 && path.Revision <= path.Full.Revision {
		return source
	}
	for _, object := range path.Objects {
		source.RowBytes += object.Size * compression
	}
	source.Rows = func(ctx context.Context, row func(format.Row) error) (Changes, error) {
		read, err := a.Read(ctx, path, row)
		if err == nil && reading != nil {
			*reading = read
		}
		return Changes{
			Revision: read.Revision, Buckets: read.Buckets, Later: read.Later, Compacted: read.Compacted,
			Recorded: func(ctx context.Context) (*format.Bucket, error) { return a.Recorded(ctx, path, leaseBucket) },
		}, err
	}
	return source
}

// Best builds from a path through an archive, and from the next best one where something on it is missing or damaged, until one
// leads there. It returns that path. build must be able to begin anew after an error. instead, unless it is nil, is told of each
// change before it is built: the paths' revisions say what is lost by it, and why is what is wrong with the former. An error of it
// is Best's. Otherwise the error is the last path's: what nobody trusts is not damaged, so no revision is given up for it.
func Best(ctx context.Context, a *archive.Archive, path archive.Path, build func(archive.Path) error, instead func(from, to archive.Path, why error) error) (archive.Path, error) {
	for {
		err := build(path)
		if err == nil {
			return path, nil
		}
		other, none := a.Instead(ctx, path, Blamed(err, path))
		if none != nil {
			return path, err
		}
		if why := errors.Join(err, other.PastEnd); other.Revision < path.Revision && errors.Is(why, format.ErrUntrusted) {
			return path, why
		}
		if instead != nil {
			if err := instead(path, other, err); err != nil {
				return path, err
			}
		}
		path = other
	}
}

// Blamed is an archive.Fault of an error of building from a path, if it is about what lies in the archive: also a full that was
// damaged when it was stored.
func Blamed(err error, path archive.Path) error {
	var fault *archive.Fault
	if errors.As(err, &fault) || !errors.Is(err, ErrDamaged) {
		return err
	}
	return &archive.Fault{Object: archive.DataName(path.Full.Generation, path.Full.Name()), Err: err}
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
