// Package archivetest fills archives for tests.
package archivetest

import (
	"cmp"
	"context"
	"errors"
	"io"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
)

// PutFull stores the data of a full snapshot and then its manifest.
func PutFull(ctx context.Context, into *archive.Archive, full archive.Full, database io.Reader) (archive.Full, error) {
	full, err := into.PutData(ctx, full, database)
	if err != nil {
		return archive.Full{}, err
	}
	return full, into.Commit(ctx, full)
}

// PutSegment stores a segment under the name for its position.
func PutSegment(ctx context.Context, into *archive.Archive, object format.Object) error {
	return into.PutStored(ctx, object.Generation, object.Position, object.Reader())
}

// BeginGeneration simulates a restore: it ends the newest generation and creates the next one.
func BeginGeneration(ctx context.Context, into *archive.Archive, next archive.Generation) error {
	lineage, err := into.Lineage(ctx)
	if newest := lineage.Newest(); err == nil && newest.Number != 0 {
		err = end(ctx, into, newest, next)
	}
	if err != nil {
		return err
	}
	return into.BeginGeneration(ctx, next)
}

func end(ctx context.Context, into *archive.Archive, newest, next archive.Generation) error {
	head, err := into.Head(ctx, newest.Number)
	if err != nil {
		return err
	}
	ending := format.Ending{Successor: next.Number, Nonce: cmp.Or(next.Session, "restore"), At: next.Created}
	if err = into.End(ctx, newest, head, next.Session, ending); errors.Is(err, archive.ErrEnded) {
		err = nil
	}
	return err
}
