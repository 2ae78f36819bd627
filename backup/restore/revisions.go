package restore

import (
	"fmt"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"
)

// schedule has etcd compact when it starts, unless it was going to anyway.
func schedule(tx *bolt.Tx, compaction int64) error {
	meta := tx.Bucket(schema.Meta.Name())
	if compaction <= revisionIn(meta, schema.ScheduledCompactKeyName) {
		return nil
	}
	return meta.Put(schema.ScheduledCompactKeyName, revisionKey(compaction))
}

// bump goes on above a revision, and has all before it compacted, the way etcdutl does.
func bump(tx *bolt.Tx, above int64) error {
	newest, err := newestRevision(tx)
	if err != nil {
		return err
	}
	next := max(newest, above) + 1
	if err := tx.Bucket(schema.Key.Name()).Put(revisionKey(next), nil); err != nil {
		return err
	}
	return schedule(tx, next)
}

func revisionKey(revision int64) []byte {
	return mvcc.RevToBytes(mvcc.Revision{Main: revision}, mvcc.NewRevBytes())
}

// revisionIn is the revision that a name in the bucket of etcd's own data stands for; 0 if there is none.
func revisionIn(meta *bolt.Bucket, name []byte) int64 {
	value := meta.Get(name)
	if value == nil {
		return 0
	}
	return mvcc.BytesToRev(value).Main
}

// newestRevision is that of the last row, or of the compaction that has deleted it. It refuses a database that is not
// etcd's.
func newestRevision(tx *bolt.Tx) (int64, error) {
	keys, meta := tx.Bucket(schema.Key.Name()), tx.Bucket(schema.Meta.Name())
	if keys == nil || meta == nil {
		return 0, errNotEtcds
	}
	return max(lastRow(keys), revisionIn(meta, schema.ScheduledCompactKeyName), revisionIn(meta, schema.FinishedCompactKeyName)), nil
}

// lastRow is the revision of the last row; 1 in an etcd that nobody has written to.
func lastRow(keys *bolt.Bucket) int64 {
	if last, _ := keys.Cursor().Last(); last != nil {
		return mvcc.BytesToRev(last).Main
	}
	return 1
}

// holds refuses a database whose last row is of another revision than was said, if that was said.
func holds(tx *bolt.Tx, revision int64) error {
	keys := tx.Bucket(schema.Key.Name())
	if revision == 0 || keys == nil {
		return nil
	}
	if last := lastRow(keys); last != revision {
		return fmt.Errorf("%w: its last revision is %d and should be %d", ErrDamaged, last, revision)
	}
	return nil
}
