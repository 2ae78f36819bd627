package capture

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"time"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/schema"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
)

// lockPatience bounds the wait for a database that somebody else has open.
const lockPatience = time.Second

// Identity is what a member knows of itself, or knew when it was closed.
type Identity struct {
	MemberID, ClusterID string // etcd's, hexadecimal
	Leader              bool   // it leads its cluster; of a closed one, it wrote the cluster's backups
	Members             int    // of the cluster of a closed one; 0 if that is not known
	Term                uint64 // raft's; 0 for a closed one: that of the last entry of the log that the database has
}

// Closed is an etcd that was closed, seen as a running one is, so that what it took on until its last moment can still be brought
// into the store. It only reads. Its methods may be called from any goroutine until Close.
type Closed struct {
	identity Identity
	database *closedDatabase
	revision int64
	applied  uint64
}

// errClosed is for what only a running etcd can tell.
var errClosed = errors.New("etcd is closed")

// OpenClosed opens the database file of an etcd that was closed. The error names the file.
func OpenClosed(path string, identity Identity) (*Closed, error) {
	db, err := bolt.Open(path, 0, &bolt.Options{ReadOnly: true, Timeout: lockPatience})
	if err != nil {
		return nil, fmt.Errorf("cannot read database %s: %w", path, err)
	}
	e := &Closed{identity: identity, database: &closedDatabase{db: db}}
	tx := e.database.ConcurrentReadTx()
	defer tx.RUnlock()
	e.revision = lastRevision(tx.(*closedTx).Tx)
	applied, term := schema.UnsafeReadConsistentIndex(tx)
	e.applied, e.identity.Term = applied, cmp.Or(identity.Term, term)
	return e, nil
}

// Close ends reading. Nothing may be read afterwards.
func (e *Closed) Close() error { return e.database.db.Close() }

// Backend is the database; of its methods those for reading work.
func (e *Closed) Backend() backend.Backend { return e.database }

// Revision is the last one.
func (e *Closed) Revision() int64 { return e.revision }

// AppliedIndex is that of the last entry of the log that the database has.
func (e *Closed) AppliedIndex() uint64 { return e.applied }

// Identity is what the member knew of itself.
func (e *Closed) Identity() Identity { return e.identity }

// Members is how many its cluster had.
func (e *Closed) Members() int { return e.identity.Members }

// Hashes are none: etcd has forgotten them.
func (*Closed) Hashes() []format.CompactionHash { return nil }

// Hash is an error.
func (*Closed) Hash(int64) (archive.Hash, error) { return archive.Hash{}, errClosed }

// closedDatabase is the part of etcd's backend that reads. The rest is absent: a call of it is a fault of this program.
type closedDatabase struct {
	backend.Backend
	db *bolt.DB
}

// ConcurrentReadTx implements backend.Backend.
func (d *closedDatabase) ConcurrentReadTx() backend.ReadTx {
	tx, err := d.db.Begin(false)
	if err != nil {
		panic(err) // it is closed; whoever reads etcd's database expects that of it
	}
	return &closedTx{boltReader: boltReader{tx}, Tx: tx}
}

// BatchTx implements backend.Backend: nobody writes.
func (*closedDatabase) BatchTx() backend.BatchTx { return noWrite{} }

type noWrite struct{ backend.BatchTx }

// LockOutsideApply implements backend.BatchTx.
func (noWrite) LockOutsideApply() {}

// Unlock implements backend.BatchTx.
func (noWrite) Unlock() {}

// Size implements backend.Backend.
func (d *closedDatabase) Size() int64 {
	tx := d.ConcurrentReadTx().(*closedTx)
	defer tx.RUnlock()
	return tx.Size()
}

// Snapshot implements backend.Backend.
func (d *closedDatabase) Snapshot() backend.Snapshot {
	return d.ConcurrentReadTx().(*closedTx)
}

// closedTx implements backend.ReadTx, and backend.Snapshot, which is the transaction that its content comes from, as etcd's own is.
type closedTx struct {
	boltReader
	*bolt.Tx
}

// RLock implements backend.ReadTx. It is locked from the beginning.
func (t *closedTx) RLock() {}

// RUnlock implements backend.ReadTx.
func (t *closedTx) RUnlock() { _ = t.Rollback() } // it has only read

// Close implements backend.Snapshot.
func (t *closedTx) Close() error { return t.Rollback() }

// boltTx is a read transaction of bbolt's, as etcd's snapshot also is.
type boltTx interface {
	Bucket(name []byte) *bolt.Bucket
}

// boltReader reads in one as etcd does in its own.
type boltReader struct{ tx boltTx }

// UnsafeRange implements backend.UnsafeReader.
func (r boltReader) UnsafeRange(of backend.Bucket, key, end []byte, limit int64) (keys, values [][]byte) {
	bucket := r.tx.Bucket(of.Name())
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
func (r boltReader) UnsafeForEach(of backend.Bucket, visit func(key, value []byte) error) error {
	bucket := r.tx.Bucket(of.Name())
	if bucket == nil {
		return nil
	}
	return bucket.ForEach(visit)
}
