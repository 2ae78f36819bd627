package standalone

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"

	"etcd-wrapper/bootstrap"
)

const (
	lockTimeout    = time.Second // how long to wait for another process to let go of the database
	recordsPerLook = 1024        // revisions or WAL records read between two looks at the context
	quotedFindings = 3           // of bbolt's findings, how many an error quotes
)

// verifyDatabase returns the index of the last entry that the database has applied, 0 if there is none. In every mode but
// Sanity it reads all of it.
func verifyDatabase(ctx context.Context, found *member, mode bootstrap.Mode) (applied uint64, err error) {
	err = guarded(func() error {
		db, err := openDatabase(found.db)
		if err != nil {
			return err
		}
		defer db.Close()
		return db.View(func(tx *bolt.Tx) error {
			if applied, err = verifyBuckets(tx, found); err != nil || mode == bootstrap.Sanity {
				return err
			}
			// The scan comes first: unlike the page check it runs in this goroutine, where a panic is recovered.
			if err := scanRevisions(ctx, tx); err != nil {
				return err
			}
			return checkPages(ctx, tx)
		})
	})
	if err != nil {
		err = fmt.Errorf("database %s: %w", found.db, err)
	}
	return applied, err
}

func openDatabase(path string) (*bolt.DB, error) {
	db, err := bolt.Open(path, 0, &bolt.Options{ReadOnly: true, Timeout: lockTimeout})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return nil, errors.New("the database is locked by another process")
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open it: %w", err)
	}
	return db, nil
}

// verifyBuckets checks that the file has all its pages and the two buckets without which there is no data. The first
// thing that etcd stores creates both, so a database without them is whole as long as nothing refers to what it held.
func verifyBuckets(tx *bolt.Tx, found *member) (applied uint64, err error) {
	if size := found.dbInfo.Size(); size < tx.Size() {
		return 0, fmt.Errorf("it was truncated: its pages need %d bytes, it has %d", tx.Size(), size)
	}
	keys, meta := tx.Bucket(schema.Key.Name()), tx.Bucket(schema.Meta.Name())
	if meta != nil {
		if applied, err = appliedIndex(meta); err != nil {
			return 0, err
		}
	}
	unused := keys == nil && applied == 0 && len(found.snapshots) == 0
	switch {
	case found.unborn() && applied > 0:
		return 0, fmt.Errorf("it has applied entry %d, but %s holds no WAL segment", applied, found.walDir)
	case keys == nil && !unused:
		return 0, errors.New(`it has no bucket "key"`)
	case meta == nil && !unused:
		return 0, errors.New(`it has no bucket "meta"`)
	}
	return applied, nil
}

func appliedIndex(meta *bolt.Bucket) (uint64, error) {
	value := meta.Get(schema.MetaConsistentIndexKeyName)
	switch len(value) {
	case 0:
		return 0, nil
	case 8:
		return binary.BigEndian.Uint64(value), nil
	default:
		return 0, fmt.Errorf("its consistent index has %d bytes instead of 8", len(value))
	}
}

// scanRevisions reads every revision of every key: the revision's own form, that revisions ascend, and the value.
func scanRevisions(ctx context.Context, tx *bolt.Tx) error {
	keys := tx.Bucket(schema.Key.Name())
	if keys == nil {
		return nil
	}
	cursor, previous, count := keys.Cursor(), mvcc.Revision{Main: -1}, 0
	for key, value := cursor.First(); key != nil; key, value = cursor.Next() {
		if count++; count%recordsPerLook == 0 && ctx.Err() != nil {
			return fmt.Errorf("reading its revisions was stopped: %w", context.Cause(ctx))
		}
		revision, err := verifyRevision(key, value)
		if err != nil {
			return fmt.Errorf("revision %x is corrupt: %w", key, err)
		}
		if !revision.GreaterThan(previous) {
			return fmt.Errorf("revision %x is out of order", key)
		}
		previous = revision
	}
	return nil
}

// verifyRevision compares the revision in the bucket's key with the one in the value. A deletion stores nothing but the
// name of the key.
func verifyRevision(key, value []byte) (mvcc.Revision, error) {
	revision := mvcc.BytesToBucketKey(key).Revision // panics on a malformed revision
	var stored mvccpb.KeyValue
	if err := stored.Unmarshal(value); err != nil {
		return revision, err
	}
	switch {
	case mvcc.IsTombstone(key):
		return revision, nil
	case stored.ModRevision != revision.Main:
		return revision, fmt.Errorf("its value belongs to revision %d", stored.ModRevision)
	case stored.CreateRevision > stored.ModRevision || stored.Version < 1:
		return revision, errors.New("its value was modified before it was created")
	}
	return revision, nil
}

// checkPages runs bbolt's own check. It can't be stopped, so the findings are read to the end even if ctx is done.
func checkPages(ctx context.Context, tx *bolt.Tx) error {
	var first []string
	count := 0
	for finding := range tx.Check() {
		if count++; count <= quotedFindings {
			first = append(first, clipped(finding.Error(), 200))
		}
	}
	if count > 0 {
		return fmt.Errorf("bbolt's page check found %d errors, among them: %s", count, strings.Join(first, "; "))
	}
	return ctx.Err()
}

// clipped returns the first bytes of a text.
func clipped(text string, limit int) string {
	return text[:min(len(text), limit)]
}
