package verification

import (
	"context"
	"errors"
	"fmt"
	"strings"

	bolt "go.etcd.io/bbolt"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/restore"
)

// quotedFindings limits the findings of bbolt in a message.
const quotedFindings = 3

// checkPages runs bbolt's check of every page.
func checkPages(ctx context.Context, path string) error {
	db, err := bolt.Open(path, 0, &bolt.Options{ReadOnly: true})
	if err != nil {
		return fmt.Errorf("%w: %w", errDiffers, err)
	}
	defer db.Close() // nothing was written
	return db.View(func(tx *bolt.Tx) error {
		var first []string
		count := 0
		for finding := range tx.Check() { // bbolt cannot stop it
			if count++; count <= quotedFindings {
				first = append(first, fmt.Sprintf("%.200s", finding))
			}
		}
		if count > 0 {
			return fmt.Errorf("%w: bbolt's page check found %d errors, among them: %s", errDiffers, count, strings.Join(first, "; "))
		}
		return ctx.Err()
	})
}

// compare compares the hash of the database with the newest hash of etcd that covers rows of this database: of a
// compaction after the full snapshot, or of the snapshot. It returns the hash that etcd recorded, or nil if there is
// none.
func compare(ctx context.Context, database string, path archive.Path, compactions []format.Hash) (*format.Hash, error) {
	recorded, atCompaction := path.Full.Hash, false
	for _, compaction := range compactions {
		if comparable(path.Full, compaction.Compacted) {
			recorded, atCompaction = &compaction, true
		}
	}
	if recorded == nil || !comparable(path.Full, recorded.Compacted) {
		return nil, nil
	}
	computed, err := restore.HashKV(ctx, database, restore.HashRequest{
		Compacted: recorded.Compacted, Revision: recorded.Revision, Compaction: atCompaction,
	})
	switch {
	case errors.Is(err, restore.ErrCompacted), errors.Is(err, restore.ErrFutureRevision):
		return nil, fmt.Errorf("%w: %w", errDiffers, err)
	case err != nil:
		return nil, err
	case computed != recorded.Hash:
		return nil, fmt.Errorf("%w: the hash of revision %d, compacted at %d, is %d, and etcd's was %d", errDiffers, recorded.Revision, recorded.Compacted, computed, recorded.Hash)
	}
	return recorded, nil
}

// comparable reports whether the full snapshot still contains the rows of a hash that was taken after a compaction.
func comparable(full archive.Full, compacted int64) bool {
	return full.Compacted == 0 || compacted >= full.Compacted
}
