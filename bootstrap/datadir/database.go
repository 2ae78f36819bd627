package datadir

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
	"go.etcd.io/etcd/server/v3/storage/schema"
)

// lockTimeout is how long to wait for another process to let go of the database.
const lockTimeout = time.Second

// errCutOff is what a database is refused with that is shorter than it says of itself: to read on would fault.
var errCutOff = errors.New("truncated")

// errLocked is of a database that another process holds.
var errLocked = errors.New("the database is locked by another process")

// readDatabase has the database looked at, which is opened for reading only. fs.ErrNotExist says that there is none,
// errCutOff that not all of its pages are there; then look is not called.
func readDatabase(path string, look func(tx *bolt.Tx) error) error {
	return guarded(func() error {
		file, err := os.Stat(path)
		if err != nil {
			return fmt.Errorf("cannot open it: %w", err)
		}
		database, err := openDatabase(path)
		if err != nil {
			return err
		}
		defer database.Close() // nothing was written
		return database.View(func(tx *bolt.Tx) error {
			if file.Size() < tx.Size() {
				return fmt.Errorf("%w to %d bytes of %d", errCutOff, file.Size(), tx.Size())
			}
			return look(tx)
		})
	})
}

func openDatabase(path string) (*bolt.DB, error) {
	db, err := bolt.Open(path, 0, &bolt.Options{ReadOnly: true, Timeout: lockTimeout})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return nil, errLocked
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open it: %w", err)
	}
	return db, nil
}

// contents is what a database says of itself.
type contents struct {
	applied uint64            // index of the last entry of the log that has reached it; 0 if there is none
	members map[string][]byte // of the cluster, as JSON, by their IDs in hex
	former  map[string][]byte // the IDs of those that were removed from it
	version string            // of the cluster, such as 3.6.0; empty if it says none
	keyless bool              // not one revision is in it
	since36 bool              // etcd 3.6 or a later one wrote it last, and the log: an older one would not have opened it
}

// single36 says that the member is alone in its cluster, and that its log is written as etcd 3.6 does it.
func (c contents) single36() bool { return len(c.members) == 1 && c.since36 }

// empty says that no client's write was ever stored. etcd may have told the database who the first members are, one entry
// for each, before the log had that.
func (c contents) empty() bool { return c.keyless && c.applied <= uint64(len(c.members)) }

func readContents(tx *bolt.Tx) (contents, error) {
	applied, err := appliedIndex(tx)
	return contents{
		applied: applied,
		members: valuesOf(tx.Bucket(schema.Members.Name())),
		former:  valuesOf(tx.Bucket(schema.MembersRemoved.Name())),
		version: string(valueIn(tx.Bucket(schema.Cluster.Name()), schema.ClusterClusterVersionKeyName)),
		keyless: holdsNothing(tx.Bucket(schema.Key.Name())),
		since36: valueIn(tx.Bucket(schema.Meta.Name()), schema.MetaStorageVersionName) != nil,
	}, err
}

func appliedIndex(tx *bolt.Tx) (uint64, error) {
	value := valueIn(tx.Bucket(schema.Meta.Name()), schema.MetaConsistentIndexKeyName)
	switch len(value) {
	case 0:
		return 0, nil
	case 8:
		return binary.BigEndian.Uint64(value), nil
	default:
		return 0, fmt.Errorf("its consistent index has %d bytes instead of 8", len(value))
	}
}

// valueIn is what a bucket holds for a key; it need not be there. It is valid as long as the transaction.
func valueIn(bucket *bolt.Bucket, key []byte) []byte {
	if bucket == nil {
		return nil
	}
	return bucket.Get(key)
}

// valuesOf is all that a bucket holds, by its keys; it need not be there. It is for the small ones.
func valuesOf(bucket *bolt.Bucket) map[string][]byte {
	values := map[string][]byte{}
	if bucket == nil {
		return values
	}
	cursor := bucket.Cursor()
	for key, value := cursor.First(); key != nil; key, value = cursor.Next() {
		values[string(key)] = bytes.Clone(value)
	}
	return values
}

func holdsNothing(bucket *bolt.Bucket) bool {
	if bucket == nil {
		return true
	}
	first, _ := bucket.Cursor().First()
	return first == nil
}
