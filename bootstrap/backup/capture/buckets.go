package capture

import (
	"bytes"
	"slices"

	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/schema"

	"etcd-wrapper/bootstrap/backup/segment"
)

// small are all buckets of etcd's but that of the rows.
var small = slices.DeleteFunc(slices.Clone(schema.AllBuckets), func(b backend.Bucket) bool { return b.ID() == schema.Key.ID() })

// SmallBuckets are the names of the buckets beside that of the rows.
func SmallBuckets() (names []string) {
	for _, bucket := range small {
		names = append(names, string(bucket.Name()))
	}
	return names
}

// readBuckets copies the small buckets.
func readBuckets(tx backend.UnsafeReader) (found []*segment.Bucket) {
	for _, bucket := range small {
		found = append(found, readBucket(tx, bucket))
	}
	return found
}

// readBucket puts in order what etcd visits in two parts: first what is in the file, then what waits for the next commit.
func readBucket(tx backend.UnsafeReader, bucket backend.Bucket) *segment.Bucket {
	type entry struct{ key, value []byte }
	var entries []entry
	_ = tx.UnsafeForEach(bucket, func(k, v []byte) error {
		entries = append(entries, entry{k, v})
		return nil
	})
	slices.SortFunc(entries, func(a, b entry) int { return bytes.Compare(a.key, b.key) })
	copied := segment.NewBucket(string(bucket.Name()))
	for _, entry := range entries {
		copied.Add(entry.key, entry.value)
	}
	return copied
}

// ofItself are the entries of the meta bucket that etcd moves as it goes along, without anybody having changed anything.
var ofItself = [][]byte{
	schema.MetaConsistentIndexKeyName, schema.MetaTermKeyName, schema.ScheduledCompactKeyName, schema.FinishedCompactKeyName,
}

// Digest tells whether a small bucket was changed, other than by etcd's own bookkeeping of how far it is.
func Digest(bucket *segment.Bucket) segment.Digest {
	if bucket.Name != string(schema.Meta.Name()) {
		return bucket.Digest()
	}
	changed := segment.NewBucket(bucket.Name)
	for key, value := range bucket.Entries() {
		if !slices.ContainsFunc(ofItself, func(own []byte) bool { return bytes.Equal(own, key) }) {
			changed.Add(key, value)
		}
	}
	return changed.Digest()
}
