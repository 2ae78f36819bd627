package restore

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/lease/leasepb"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"google.golang.org/protobuf/encoding/protowire"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/internal/steady"
)

// leaseBucket is the name of etcd's lease bucket.
var leaseBucket = string(schema.Lease.Name())

const (
	batchBytes = 2 << 20 // row bytes per transaction; bbolt keeps a transaction in memory
	// flushBytes is the number of row bytes after which the file is flushed. For a scratch database, the writer then
	// waits for the disk, because the running etcd has priority. For any other database, the kernel only starts
	// writing, which shortens the final flush.
	flushBytes  = 32 << 20
	fillPercent = 0.9 // as in etcd, because rows are only appended
)

// errNotEtcd means that the file is not an etcd database.
var errNotEtcd = fmt.Errorf("%w: not an etcd database (the key or meta bucket is missing)", ErrDamaged)

// rowWriter appends rows to the key bucket in transactions of limited size.
type rowWriter struct {
	ctx      context.Context
	db       *bolt.DB
	file     *os.File // database file
	scratch  bool     // see Options
	progress *progressReporter

	tx          *bolt.Tx
	keys        *bolt.Bucket
	firstNew    []byte // greater than the key of every row in the full snapshot
	last        []byte // key of the newest row
	rows, bytes int64  // size of the current transaction
	unflushed   int64  // bytes inserted since the file was last flushed
}

// writeAll inserts all rows. After an error, the database may contain some of the rows and must be discarded.
func (i *rowWriter) writeAll(rows Rows) (changed archive.Reading, err error) {
	defer func() {
		if i.tx != nil {
			err = errors.Join(err, i.tx.Rollback())
		}
	}()
	if err := i.begin(); err != nil {
		return archive.Reading{}, err
	}
	if last, _ := i.keys.Cursor().Last(); last != nil {
		full := mvcc.Revision{Main: mvcc.BytesToRev(last).Main, Sub: math.MaxInt64} // the snapshot contains all rows of its last revision
		i.firstNew = append(mvcc.RevToBytes(full, mvcc.NewRevBytes()), 't')
		i.last = i.firstNew
	}
	if changed, err = readAndInsert(i.ctx, rows, i.row); err != nil {
		return archive.Reading{}, err
	}
	return changed, i.commit()
}

func (i *rowWriter) begin() (err error) {
	if i.tx, err = i.db.Begin(true); err != nil {
		return err
	}
	if i.keys = i.tx.Bucket(schema.Key.Name()); i.keys == nil {
		return errNotEtcd
	}
	i.keys.FillPercent = fillPercent
	i.rows, i.bytes = 0, 0
	return nil
}

func (i *rowWriter) commit() error {
	tx := i.tx
	i.tx = nil
	if err := tx.Commit(); err != nil {
		return err
	}
	i.progress.add(i.bytes, i.rows)
	if i.unflushed += i.bytes; i.unflushed >= flushBytes {
		i.unflushed = 0
		if i.scratch {
			steady.Flush(i.file)
		} else {
			steady.StartFlush(i.file, 0, 0)
		}
	}
	return context.Cause(i.ctx)
}

// row inserts one row and retains its key and value.
func (i *rowWriter) row(row format.Row) error {
	if bytes.Compare(row.Key, i.last) <= 0 {
		return fmt.Errorf("%w: row %x is out of order", ErrDamaged, row.Key)
	}
	if size := int64(len(row.Value)); i.rows > 0 && i.bytes+size > batchBytes {
		if err := i.commit(); err != nil {
			return err
		}
		if err := i.begin(); err != nil {
			return err
		}
	}
	i.last = row.Key
	i.rows++
	i.bytes += int64(len(row.Value))
	return i.keys.Put(row.Key, row.Value)
}

const (
	batchSize = 256 << 10 // maximum size of a batch in bytes; a larger row gets its own batch
	maxQueued = 4         // maximum number of batches between the reader and the inserter
)

// batch contains rows on their way from the reader to the inserter.
type batch struct {
	rows    []format.Row
	content []byte // concatenated rows
}

// readAndInsert inserts rows while another goroutine reads the next ones, because reading and inserting take about
// the same time. It returns after both have ended. If both fail, it returns the error from inserting. insert may
// retain the rows.
func readAndInsert(ctx context.Context, read Rows, insert func(format.Row) error) (changed archive.Reading, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	full := make(chan batch, maxQueued)
	go func() {
		defer close(full)
		err = recoverPanic(func() (err error) {
			changed, err = readInto(ctx, full, read)
			return err
		})
	}()
	var failed error
	for b := range full {
		for at := 0; at < len(b.rows) && failed == nil; at++ {
			failed = insert(b.rows[at])
		}
		if failed != nil {
			cancel()
		}
	}
	if failed != nil {
		return archive.Reading{}, failed
	}
	return changed, err
}

// readInto copies the rows into batches.
func readInto(ctx context.Context, full chan<- batch, read Rows) (archive.Reading, error) {
	var b batch
	send := func() error {
		select {
		case full <- b:
			b = batch{content: make([]byte, 0, batchSize)}
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	changed, err := read(ctx, func(row format.Row) error {
		if len(b.content)+len(row.Key)+len(row.Value) > batchSize {
			if err := send(); err != nil {
				return err
			}
		}
		b.add(row)
		return nil
	})
	if err != nil {
		return archive.Reading{}, err
	}
	return changed, send()
}

func (b *batch) add(row format.Row) {
	start, value := len(b.content), len(b.content)+len(row.Key)
	b.content = append(append(b.content, row.Key...), row.Value...)
	b.rows = append(b.rows, format.Row{Key: b.content[start:value:value], Value: b.content[value:len(b.content):len(b.content)]})
}

// schedule makes etcd compact when it starts, unless a later compaction is already scheduled.
func schedule(tx *bolt.Tx, compaction int64) error {
	meta := tx.Bucket(schema.Meta.Name())
	if compaction <= revisionIn(meta, schema.ScheduledCompactKeyName) {
		return nil
	}
	return meta.Put(schema.ScheduledCompactKeyName, revisionKey(compaction))
}

// bumpRevision makes the database continue above a revision and marks earlier revisions as compacted, as etcdutl
// does.
func bumpRevision(tx *bolt.Tx, above int64) error {
	newest, err := lastRevision(tx)
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

// revisionIn returns the revision stored under a name in etcd's meta bucket, or 0 if the name does not exist.
func revisionIn(meta *bolt.Bucket, name []byte) int64 {
	value := meta.Get(name)
	if value == nil {
		return 0
	}
	return mvcc.BytesToRev(value).Main
}

// lastRevision returns the revision of the last row, or of a later compaction, which may have deleted the row. If the
// file is not an etcd database, lastRevision returns an error.
func lastRevision(tx *bolt.Tx) (int64, error) {
	keys, meta := tx.Bucket(schema.Key.Name()), tx.Bucket(schema.Meta.Name())
	if keys == nil || meta == nil {
		return 0, errNotEtcd
	}
	last, err := lastRow(keys)
	return max(last, revisionIn(meta, schema.ScheduledCompactKeyName), revisionIn(meta, schema.FinishedCompactKeyName)), err
}

// lastRow returns the revision of the last row, or 1 if there are no rows, as etcd does.
func lastRow(keys *bolt.Bucket) (int64, error) {
	last, _ := keys.Cursor().Last()
	if last == nil {
		return 1, nil
	}
	revision, err := format.Row{Key: last}.Revision()
	if err != nil {
		return 0, fmt.Errorf("%w: row %.20x: %w", ErrDamaged, last, err)
	}
	return revision, nil
}

// checkLastRevision returns ErrDamaged if the last row is not at the given revision. A revision of 0 means unknown.
func checkLastRevision(tx *bolt.Tx, revision int64) error {
	keys := tx.Bucket(schema.Key.Name())
	if revision == 0 || keys == nil {
		return nil
	}
	last, err := lastRow(keys)
	if err == nil && last != revision {
		return fmt.Errorf("%w: last revision is %d, expected %d", ErrDamaged, last, revision)
	}
	return err
}

// TTLs in seconds of leases that keys refer to but that are not in any bucket.
const (
	// expiredTTL applies to a lease that the next recorded bucket does not contain. Such a lease has expired, so its
	// keys were deleted and must be deleted again.
	expiredTTL = 1
	// unknownTTL applies if no later bucket was recorded. A client may still use the lease and must not lose it
	// early, so the lease gets the longest known TTL, and at least the default TTL of etcd sessions.
	unknownTTL = 60
)

// addMissingLeases adds the leases that keys refer to but that the database does not contain. Without its lease, a
// key would never expire. Buckets are recorded less often than rows, so a lease may be granted after one recorded
// bucket and expire before the next. Only rows after the full snapshot can refer to a missing lease.
func addMissingLeases(ctx context.Context, tx *bolt.Tx, firstNew []byte, recorded func(context.Context) (*format.Bucket, error)) error {
	leases, err := tx.CreateBucketIfNotExists(schema.Lease.Name())
	if err != nil {
		return err
	}
	missing := missingLeases(tx, leases, firstNew)
	if len(missing) == 0 {
		return nil
	}
	var next *format.Bucket
	if recorded != nil {
		next, err = recorded(ctx)
	}
	ttl, stated := longestTTL(leases), map[string][]byte{}
	if next != nil {
		ttl = expiredTTL
		for key, value := range next.Entries() {
			stated[string(key)] = value
		}
	}
	for id := range missing {
		value := stated[string(leaseKey(id))]
		if value == nil && err == nil {
			value, err = (&leasepb.Lease{ID: id, TTL: ttl}).Marshal()
		}
		if err != nil {
			return fmt.Errorf("cannot recreate missing lease %x: %w", id, err)
		}
		if err = leases.Put(leaseKey(id), value); err != nil {
			return err
		}
	}
	return nil
}

// missingLeases returns the leases that keys refer to but that the database does not contain. Only rows whose keys
// are not less than first are considered.
func missingLeases(tx *bolt.Tx, leases *bolt.Bucket, first []byte) map[int64]bool {
	leaseOf := map[string]int64{} // lease ID by key
	rows := tx.Bucket(schema.Key.Name()).Cursor()
	for at, value := rows.Seek(first); at != nil; at, value = rows.Next() {
		key, lease, _ := keyAndLease(value) // verification detects an invalid value
		if (format.Row{Key: at}).Tombstone() || lease == 0 || leases.Get(leaseKey(lease)) != nil {
			delete(leaseOf, string(key))
		} else {
			leaseOf[string(key)] = lease
		}
	}
	missing := map[int64]bool{}
	for _, id := range leaseOf {
		missing[id] = true
	}
	return missing
}

// Field numbers of etcd's mvccpb.KeyValue.
const (
	keyField   = 1
	leaseField = 6
)

// keyAndLease decodes only two fields of a row's value. Copying the whole value would take as long as inserting it.
func keyAndLease(value []byte) (key []byte, lease int64, err error) {
	for len(value) > 0 {
		number, kind, tag := protowire.ConsumeTag(value)
		length := protowire.ConsumeFieldValue(number, kind, value[max(tag, 0):])
		if broken := min(tag, length); broken < 0 {
			return nil, 0, protowire.ParseError(broken)
		}
		switch field := value[tag : tag+length]; {
		case number == keyField && kind == protowire.BytesType:
			key, _ = protowire.ConsumeBytes(field)
		case number == leaseField && kind == protowire.VarintType:
			id, _ := protowire.ConsumeVarint(field)
			lease = int64(id) //nolint:gosec // protobuf encodes an int64 as a uint64 with the same bits
		}
		value = value[tag+length:]
	}
	return key, lease, nil
}

// longestTTL returns the longest TTL of all leases, and at least unknownTTL.
func longestTTL(leases *bolt.Bucket) int64 {
	ttl := int64(unknownTTL)
	_ = leases.ForEach(func(_, value []byte) error { // the function never returns an error
		var known leasepb.Lease
		if known.Unmarshal(value) == nil {
			ttl = max(ttl, known.TTL)
		}
		return nil
	})
	return ttl
}

// leaseKey returns etcd's key of a lease.
func leaseKey(id int64) []byte {
	return binary.BigEndian.AppendUint64(nil, uint64(id)) //nolint:gosec // etcd encodes lease IDs this way
}
