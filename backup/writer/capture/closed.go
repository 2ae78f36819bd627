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

	"etcd-wrapper/backup/format"
)

// lockTimeout is the timeout for opening a database that another process may have locked.
const lockTimeout = time.Second

// Identity describes a member. For a closed etcd, Identity describes the member at the time of the close.
type Identity struct {
	MemberID, ClusterID string // etcd's IDs in hexadecimal
	Leader              bool   // whether the member is the leader or, if closed, must upload its data
	Members             int    // number of members of a closed cluster; 0 if unknown
	Term                uint64 // raft term; if 0, OpenClosed sets it to the term of the last applied entry
}

// Closed provides read access to the database of a closed etcd through the same methods as a running etcd, so that
// the last writes can be stored. The methods are safe for concurrent use until Close is called.
type Closed struct {
	identity Identity
	database *closedBackend
	revision int64
	size     int64
	applied  uint64
}

// errClosed is returned by operations that require a running etcd.
var errClosed = errors.New("etcd is closed")

// OpenClosed opens the database file of a closed etcd.
func OpenClosed(path string, identity Identity) (*Closed, error) {
	db, err := bolt.Open(path, 0, &bolt.Options{ReadOnly: true, Timeout: lockTimeout})
	if err != nil {
		return nil, fmt.Errorf("cannot open database %s: %w", path, err)
	}
	e := &Closed{identity: identity, database: &closedBackend{db: db}}
	tx := e.database.ConcurrentReadTx()
	defer tx.RUnlock()
	e.revision, e.size = lastRevision(tx.(*closedTx).Tx), tx.(*closedTx).Size()
	applied, term := schema.UnsafeReadConsistentIndex(tx)
	e.applied, e.identity.Term = applied, cmp.Or(identity.Term, term)
	return e, nil
}

// Close closes the database file.
func (e *Closed) Close() error { return e.database.db.Close() }

// Backend returns the database for reading. Write methods must not be called.
func (e *Closed) Backend() backend.Backend { return e.database }

// Size returns the size of the database in bytes.
func (e *Closed) Size() int64 { return e.size }

// Revision returns the last revision.
func (e *Closed) Revision() int64 { return e.revision }

// AppliedIndex returns the index of the last log entry applied to the database.
func (e *Closed) AppliedIndex() uint64 { return e.applied }

// Identity returns the identity of the member.
func (e *Closed) Identity() Identity { return e.identity }

// Members returns the number of members in the cluster.
func (e *Closed) Members() int { return e.identity.Members }

// Hashes returns nil because etcd keeps its hashes in memory.
func (*Closed) Hashes() []format.Hash { return nil }

// Hash always returns an error.
func (*Closed) Hash(int64) (format.Hash, error) { return format.Hash{}, errClosed }

// closedBackend implements the read methods of backend.Backend. All other methods panic.
type closedBackend struct {
	backend.Backend
	db *bolt.DB
}

// ConcurrentReadTx implements backend.Backend.
func (d *closedBackend) ConcurrentReadTx() backend.ReadTx {
	tx, err := d.db.Begin(false)
	if err != nil {
		panic(err) // etcd's own backend also panics after it is closed
	}
	return &closedTx{txReader: txReader{tx}, Tx: tx}
}

// BatchTx implements backend.Backend. The result is nil because there are no writes.
func (*closedBackend) BatchTx() backend.BatchTx { return nil }

// Snapshot implements backend.Backend.
func (d *closedBackend) Snapshot() backend.Snapshot {
	return d.ConcurrentReadTx().(*closedTx)
}

// closedTx implements backend.ReadTx and backend.Snapshot.
type closedTx struct {
	txReader
	*bolt.Tx
}

// RLock implements backend.ReadTx. The transaction is already open.
func (t *closedTx) RLock() {}

// RUnlock implements backend.ReadTx.
func (t *closedTx) RUnlock() { _ = t.Rollback() } // the transaction is read-only

// Close implements backend.Snapshot.
func (t *closedTx) Close() error { return t.Rollback() }

// readTx is a bbolt read transaction. The snapshot type of etcd implements it.
type readTx interface {
	Bucket(name []byte) *bolt.Bucket
}

// txReader implements backend.UnsafeReader on top of a bbolt transaction.
type txReader struct{ tx readTx }

// UnsafeRange implements backend.UnsafeReader.
func (r txReader) UnsafeRange(of backend.Bucket, key, end []byte, limit int64) (keys, values [][]byte) {
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
func (r txReader) UnsafeForEach(of backend.Bucket, visit func(key, value []byte) error) error {
	bucket := r.tx.Bucket(of.Name())
	if bucket == nil {
		return nil
	}
	return bucket.ForEach(visit)
}
