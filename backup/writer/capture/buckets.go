package capture

import (
	"bytes"
	"maps"
	"slices"

	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/schema"

	"etcd-wrapper/backup/format"
)

// small lists all buckets of etcd except that of the rows.
var small = slices.DeleteFunc(slices.Clone(schema.AllBuckets), func(b backend.Bucket) bool { return b.ID() == schema.Key.ID() })

// SmallBuckets returns the names of all buckets except that of the rows.
func SmallBuckets() (names []string) {
	for _, bucket := range small {
		names = append(names, string(bucket.Name()))
	}
	return names
}

// readBucket copies a bucket in the order of its keys. etcd visits the entries in the file first, in order, and then those that wait
// for the next commit, which may contain a key twice: the later one is valid. Only entries that are out of order take extra memory,
// since a bucket may have a million leases.
func readBucket(tx backend.UnsafeReader, bucket backend.Bucket) *format.Bucket {
	copied, late := format.NewBucket(string(bucket.Name())), map[string][]byte{}
	var last []byte
	_ = tx.UnsafeForEach(bucket, func(k, v []byte) error {
		if len(late) == 0 && (last == nil || bytes.Compare(k, last) > 0) {
			copied.Add(k, v)
			last = k
		} else {
			late[string(k)] = bytes.Clone(v)
		}
		return nil
	})
	if len(late) == 0 {
		return copied
	}
	return merged(copied, late)
}

// merged returns a bucket with some entries added or replaced.
func merged(bucket *format.Bucket, late map[string][]byte) *format.Bucket {
	all := format.NewBucket(bucket.Name)
	keys := slices.Sorted(maps.Keys(late))
	for key, value := range bucket.Entries() {
		for len(keys) > 0 && keys[0] < string(key) {
			all.Add([]byte(keys[0]), late[keys[0]])
			keys = keys[1:]
		}
		if len(keys) > 0 && keys[0] == string(key) {
			continue // added with the next entry, or at the end
		}
		all.Add(key, value)
	}
	for _, key := range keys {
		all.Add([]byte(key), late[key])
	}
	return all
}

// bookkeeping lists the entries of the meta bucket that etcd updates although nothing has changed.
var bookkeeping = [][]byte{
	schema.MetaConsistentIndexKeyName, schema.MetaTermKeyName, schema.ScheduledCompactKeyName, schema.FinishedCompactKeyName,
}

// Digest returns a digest of a small bucket that changes with its content, but not with etcd's bookkeeping.
func Digest(bucket *format.Bucket) format.Digest {
	if bucket.Name != string(schema.Meta.Name()) {
		return bucket.Digest()
	}
	changed := format.NewBucket(bucket.Name)
	for key, value := range bucket.Entries() {
		if !slices.ContainsFunc(bookkeeping, func(own []byte) bool { return bytes.Equal(own, key) }) {
			changed.Add(key, value)
		}
	}
	return changed.Digest()
}
