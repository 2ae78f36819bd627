package restore

import (
	"context"
	"errors"
	"io"

	"go.etcd.io/etcd/server/v3/storage/schema"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format/seal"
	"etcd-wrapper/backup/format/segment"
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
	source.Rows = func(ctx context.Context, row func(segment.Row) error) (Changes, error) {
		read, err := a.Read(ctx, path, row)
		if err == nil && reading != nil {
			*reading = read
		}
		return Changes{
			Revision: read.Revision, Buckets: read.Buckets, Later: read.Later, Compacted: read.Compacted,
			Recorded: func(ctx context.Context) (*segment.Bucket, error) { return a.Recorded(ctx, path, leaseBucket) },
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
		if why := errors.Join(err, other.PastEnd); other.Revision < path.Revision && errors.Is(why, seal.ErrUntrusted) {
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
