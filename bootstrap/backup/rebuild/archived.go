package rebuild

import (
	"context"
	"io"

	"etcd-wrapper/bootstrap/backup/archive"
	"etcd-wrapper/bootstrap/backup/segment"
)

// compression is about how much smaller rows are in an archive.
const compression = 4

// From is the source at the end of a path through an archive. What was read of the archive, save for the rows, is stored
// in reading, if it is not nil, when the rows have been read.
func From(a *archive.Archive, path archive.Path, reading *archive.Reading) Source {
	source := Source{
		Snapshot:      func(ctx context.Context) (io.ReadCloser, error) { return a.OpenFull(ctx, path.Full) },
		DatabaseBytes: path.Full.Database.Bytes,
	}
	if len(path.Objects) == 0 {
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
		return Changes{Buckets: read.Buckets, Later: read.Later, Compacted: read.Compacted}, err
	}
	return source
}
