// Package atrest shows the database that an etcd has closed in the way a running one is seen, so that what it took on until
// its last moment can still be brought into the store. It only reads.
package atrest

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"time"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format/segment"
)

// lockPatience bounds the wait for a database that somebody else has open.
const lockPatience = time.Second

// Identity is what a member knew of itself when it was closed.
type Identity struct {
	MemberID, ClusterID string // etcd's, hexadecimal
	Leader              bool   // it wrote the cluster's backups
	Term                uint64 // raft's; 0: that of the last entry of the log that the database has
}

// Etcd is an etcd that was closed, as backups see it. Its methods may be called from any goroutine until Close.
type Etcd struct {
	Identity

	database *database
	revision int64
	applied  uint64
}

// errClosed is for what only a running etcd can tell.
var errClosed = errors.New("etcd is closed")

// Open opens the database file of an etcd that was closed. The error names the file.
func Open(path string, identity Identity) (*Etcd, error) {
	db, err := bolt.Open(path, 0, &bolt.Options{ReadOnly: true, Timeout: lockPatience})
	if err != nil {
		return nil, fmt.Errorf("cannot read database %s: %w", path, err)
	}
	e := &Etcd{Identity: identity, database: &database{db: db}}
	tx := e.database.ConcurrentReadTx()
	defer tx.RUnlock()
	e.revision = lastRevision(tx.(*transaction).tx)
	applied, term := schema.UnsafeReadConsistentIndex(tx)
	e.applied, e.Identity.Term = applied, cmp.Or(e.Identity.Term, term)
	return e, nil
}

// lastRevision is that of the last row; 1, as etcd counts, if there is none.
func lastRevision(tx *bolt.Tx) int64 {
	if rows := tx.Bucket(schema.Key.Name()); rows != nil {
		if key, _ := rows.Cursor().Last(); key != nil {
			return mvcc.BytesToBucketKey(key).Main
		}
	}
	return 1
}

// Close ends reading. Nothing may be read afterwards.
func (e *Etcd) Close() error { return e.database.db.Close() }

// Backend is the database; of its methods those for reading work.
func (e *Etcd) Backend() backend.Backend { return e.database }

// Revision is the last one.
func (e *Etcd) Revision() int64 { return e.revision }

// AppliedIndex is that of the last entry of the log that the database has.
func (e *Etcd) AppliedIndex() uint64 { return e.applied }

// IsLeader tells whether the member wrote backups.
func (e *Etcd) IsLeader() bool { return e.Leader }

// Term is raft's.
func (e *Etcd) Term() uint64 { return e.Identity.Term }

// MemberID is etcd's, hexadecimal.
func (e *Etcd) MemberID() string { return e.Identity.MemberID }

// ClusterID is etcd's, hexadecimal.
func (e *Etcd) ClusterID() string { return e.Identity.ClusterID }

// Hashes are none: etcd has forgotten them.
func (*Etcd) Hashes() []segment.CompactionHash { return nil }

// Hash is an error.
func (*Etcd) Hash(int64) (archive.Hash, error) { return archive.Hash{}, errClosed }

// database is the part of etcd's backend that reads. The rest is absent: a call of it is a fault of this program.
type database struct {
	backend.Backend
	db *bolt.DB
}

// ConcurrentReadTx implements backend.Backend.
func (d *database) ConcurrentReadTx() backend.ReadTx {
	tx, err := d.db.Begin(false)
	if err != nil {
		panic(err) // it is closed; whoever reads etcd's database expects that of it
	}
	return &transaction{tx}
}

// Size implements backend.Backend.
func (d *database) Size() int64 {
	tx := d.ConcurrentReadTx().(*transaction)
	defer tx.RUnlock()
	return tx.tx.Size()
}

// SizeInUse implements backend.Backend. It leaves out no free pages, which would take reading all of them.
func (d *database) SizeInUse() int64 { return d.Size() }

// ForceCommit implements backend.Backend: nothing waits.
func (*database) ForceCommit() {}

// Snapshot implements backend.Backend.
func (d *database) Snapshot() backend.Snapshot {
	return snapshot{d.ConcurrentReadTx().(*transaction).tx}
}

// transaction implements backend.ReadTx; it is locked from the beginning.
type transaction struct{ tx *bolt.Tx }

// RLock implements backend.ReadTx.
func (*transaction) RLock() {}

// RUnlock implements backend.ReadTx.
func (t *transaction) RUnlock() { _ = t.tx.Rollback() } // it has only read

// UnsafeRange implements backend.UnsafeReader.
func (t *transaction) UnsafeRange(of backend.Bucket, key, end []byte, limit int64) (keys, values [][]byte) {
	bucket := t.tx.Bucket(of.Name())
	if bucket == nil {
		return nil, nil
	}
	if end == nil {
		if value := bucket.Get(key); value != nil {
			return [][]byte{key}, [][]byte{value}
		}
		return nil, nil
	}
	cursor := bucket.Cursor()
	for k, v := cursor.Seek(key); k != nil && bytes.Compare(k, end) < 0; k, v = cursor.Next() {
		keys, values = append(keys, k), append(values, v)
		if limit > 0 && int64(len(keys)) == limit {
			break
		}
	}
	return keys, values
}

// UnsafeForEach implements backend.UnsafeReader.
func (t *transaction) UnsafeForEach(of backend.Bucket, visit func(key, value []byte) error) error {
	bucket := t.tx.Bucket(of.Name())
	if bucket == nil {
		return nil
	}
	return bucket.ForEach(visit)
}

// snapshot implements backend.Snapshot, and is the transaction that its content comes from, as etcd's own is.
type snapshot struct{ *bolt.Tx }

// Close implements backend.Snapshot.
func (s snapshot) Close() error { return s.Rollback() }
