// Package archivetest puts into an archive what tests begin with.
package archivetest

import (
	"context"
	"io"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
)

// PutFull stores a full snapshot: its data, then its manifest.
func PutFull(ctx context.Context, into *archive.Archive, full archive.Full, database io.Reader) (archive.Full, error) {
	full, err := into.PutData(ctx, full, database)
	if err != nil {
		return archive.Full{}, err
	}
	return full, into.Commit(ctx, full)
}

// PutSegment stores a segment under the name of its position.
func PutSegment(ctx context.Context, into *archive.Archive, object format.Object) error {
	return into.PutStored(ctx, object.Generation, object.Position, object.Reader())
}
