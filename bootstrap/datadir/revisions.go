package datadir

import (
	"context"
	"errors"
	"fmt"
	"strings"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"
)

// quotedFindings is how many of bbolt's findings an error quotes.
const quotedFindings = 3

// scanRevisions reads every revision of every key: the revision's own form, that revisions ascend, and the value. A value
// that was changed and kept its form is not found, as neither bbolt nor etcd keeps a checksum of it, and the log's entries
// do not tell which of them were refused.
func scanRevisions(ctx context.Context, tx *bolt.Tx) error {
	keys := tx.Bucket(schema.Key.Name())
	if keys == nil {
		return nil
	}
	compacted := compactedRevision(tx)
	cursor, previous, count := keys.Cursor(), mvcc.Revision{Main: -1}, 0
	var stored mvccpb.KeyValue
	for key, value := cursor.First(); key != nil; key, value = cursor.Next() {
		if count++; count%recordsPerLook == 0 && ctx.Err() != nil {
			return fmt.Errorf("reading its revisions was stopped: %w", context.Cause(ctx))
		}
		revision, err := verifyRevision(key, value, compacted, &stored)
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
// name of the key. A restore that bumps the revision (etcdutl snapshot restore --bump-revision --mark-compacted) stores
// the new one with nothing at all, and marks it as compacted. What a value is read into is used again, so that
// a million values leave no garbage behind.
func verifyRevision(key, value []byte, compacted int64, stored *mvccpb.KeyValue) (mvcc.Revision, error) {
	revision := mvcc.BytesToBucketKey(key).Revision // panics on a malformed revision
	*stored = mvccpb.KeyValue{Key: stored.Key[:0], Value: stored.Value[:0]}
	if err := stored.Unmarshal(value); err != nil {
		return revision, err
	}
	switch {
	case len(value) == 0 && revision.Sub == 0 && revision.Main <= compacted && !mvcc.IsTombstone(key):
		return revision, nil
	case mvcc.IsTombstone(key):
		return revision, nil
	case stored.ModRevision != revision.Main:
		return revision, fmt.Errorf("its value belongs to revision %d", stored.ModRevision)
	case stored.CreateRevision > stored.ModRevision || stored.Version < 1:
		return revision, errors.New("its value was modified before it was created")
	}
	return revision, nil
}

// compactedRevision is the one up to which etcd has compacted the keys, or will when it starts.
func compactedRevision(tx *bolt.Tx) (compacted int64) {
	meta := tx.Bucket(schema.Meta.Name())
	if meta == nil {
		return 0
	}
	for _, name := range [][]byte{schema.FinishedCompactKeyName, schema.ScheduledCompactKeyName} {
		if value := meta.Get(name); value != nil {
			compacted = max(compacted, mvcc.BytesToRev(value).Main)
		}
	}
	return compacted
}

// checkPages runs bbolt's own check. It can't be stopped, so the findings are read to the end even if ctx is done.
func checkPages(ctx context.Context, tx *bolt.Tx) error {
	var first []string
	count := 0
	for finding := range tx.Check() {
		if count++; count <= quotedFindings {
			first = append(first, fmt.Sprintf("%.200s", finding))
		}
	}
	if count > 0 {
		return fmt.Errorf("bbolt's page check found %d errors, among them: %s", count, strings.Join(first, "; "))
	}
	return ctx.Err()
}
