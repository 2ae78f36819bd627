package backup

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"etcd-wrapper/bootstrap/backup/archive"
	"etcd-wrapper/bootstrap/backup/atrest"
	"etcd-wrapper/bootstrap/backup/segment"
	"etcd-wrapper/bootstrap/backup/spool"
)

// FlushSpool brings what an earlier run has left in the spool into the store, whatever has become of the data. It is for the
// time before Begin. The error says what is missing, or that it does not go on from what the store has.
func (b *Backups) FlushSpool(ctx context.Context) error {
	waiting, _, err := spool.Open(b.options.SpoolDir, b.options.SpoolLimit, b.options.Keys)
	if err != nil {
		return err
	}
	var head *archive.Head
	for _, entry := range waiting.Entries() {
		manifest, err := waiting.Manifest(entry.Position, b.options.Keys)
		if err != nil {
			return err
		}
		if head == nil {
			found, err := b.archive.Head(ctx, manifest.Generation)
			if err := errors.Join(err, found.Damaged); err != nil {
				return err
			}
			head = &found
		}
		if entry.Position.Compare(head.Position) < 0 {
			continue // the store has it
		}
		if err := b.storeWaiting(ctx, waiting, manifest, *head); err != nil {
			return err
		}
		head.Start = manifest.Start()
	}
	return nil
}

func (b *Backups) storeWaiting(ctx context.Context, waiting *spool.Spool, manifest segment.Manifest, head archive.Head) error {
	if manifest.Position != head.Position || manifest.Before != head.Before || manifest.Cluster != head.Cluster {
		return fmt.Errorf("what waits for %s from revision %d on does not go on from revision %d, where its backups end",
			b.archive, manifest.Position.Revision, head.Revision())
	}
	object, err := waiting.Open(manifest.Position)
	if err != nil {
		return err
	}
	defer object.Close() // nothing was written
	return b.archive.PutStored(ctx, manifest.Generation, manifest.Position, object)
}

// FlushAtRest brings what the database of a data directory has into the store, for a cluster of one whose etcd does not run
// and will not run again on these data. The error says what is missing.
func (b *Backups) FlushAtRest(ctx context.Context, dataDir string, member, cluster uint64) error {
	closed, err := atrest.Open(filepath.Join(dataDir, "member", "snap", "db"), atrest.Identity{
		MemberID: fmt.Sprintf("%x", member), ClusterID: fmt.Sprintf("%x", cluster), Leader: true, Term: 1,
	})
	if err != nil {
		return err
	}
	defer closed.Close()
	return b.bringFrom(ctx, closed, former{wrote: true})
}
