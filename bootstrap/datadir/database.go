package datadir

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"
)

// lockTimeout is the maximum time to wait for the database lock.
const lockTimeout = time.Second

// errCutOff means that the database file is shorter than the size in its metadata. readDB rejects such a file,
// because reading past the end of the mapped file would cause a memory fault.
var errCutOff = errors.New("truncated")

// errLocked means that another process has locked the database.
var errLocked = errors.New("locked by another process")

// contents holds the metadata of a database.
type contents struct {
	applied        uint64                       // index of the last applied entry; 0 if no entry was applied
	members        map[uint64]membership.Member // members by ID
	removedMembers map[uint64]membership.Member // removed members by ID; the values are empty
	version        string                       // cluster version, such as 3.6.0, or ""
	keyless        bool                         // whether the database contains no revisions
	since36        bool                         // whether etcd 3.6 or later wrote the database last
}

// single36 reports whether the cluster has a single member whose data was last written by etcd 3.6 or later.
func (c contents) single36() bool { return len(c.members) == 1 && c.since36 }

// empty reports whether no client has ever written to the database. The applied index of an empty database may be as
// high as the number of members, because one entry adds each initial member.
func (c contents) empty() bool { return c.keyless && c.applied <= uint64(len(c.members)) }

// unused reports whether etcd would rebuild the database by replaying the log from the first entry.
func (c contents) unused() bool { return c.keyless && c.applied == 0 }

// hasMember reports whether the cluster has or had a member.
func (c contents) hasMember(id uint64) bool {
	_, current := c.members[id]
	_, removed := c.removedMembers[id]
	return current || removed
}

// voterCount returns the number of voting members.
func (c contents) voterCount() (voters int) {
	for _, member := range c.members {
		if !member.IsLearner {
			voters++
		}
	}
	return voters
}

// readDB calls look in a read-only transaction. If the database does not exist, readDB returns fs.ErrNotExist without
// calling look. If the file is truncated, readDB returns errCutOff without calling look.
func readDB(path string, look func(tx *bolt.Tx) error) error {
	return recoverPanic(func() error {
		file, err := os.Stat(path)
		if err != nil {
			return fmt.Errorf("cannot open the file: %w", err)
		}
		database, err := openDB(path)
		if err != nil {
			return err
		}
		defer database.Close() // opened read-only, so a close error is harmless
		return database.View(func(tx *bolt.Tx) error {
			if file.Size() < tx.Size() {
				return fmt.Errorf("%w to %d of %d bytes", errCutOff, file.Size(), tx.Size())
			}
			return look(tx)
		})
	})
}

func openDB(path string) (*bolt.DB, error) {
	db, err := bolt.Open(path, 0, &bolt.Options{ReadOnly: true, Timeout: lockTimeout})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return nil, errLocked
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open the file: %w", err)
	}
	return db, nil
}

func readContents(tx *bolt.Tx) (contents, error) {
	applied, err := appliedIndex(tx)
	return contents{
		applied:        applied,
		members:        membersIn(tx.Bucket(schema.Members.Name())),
		removedMembers: membersIn(tx.Bucket(schema.MembersRemoved.Name())),
		version:        string(valueIn(tx.Bucket(schema.Cluster.Name()), schema.ClusterClusterVersionKeyName)),
		keyless:        lastRevision(tx) == nil,
		since36:        valueIn(tx.Bucket(schema.Meta.Name()), schema.MetaStorageVersionName) != nil,
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
		return 0, fmt.Errorf("the consistent index has %d bytes instead of 8", len(value))
	}
}

// valueIn returns the value of a key in a bucket, or nil if the bucket or the key does not exist. The value is valid
// until the transaction ends.
func valueIn(bucket *bolt.Bucket, key []byte) []byte {
	if bucket == nil {
		return nil
	}
	return bucket.Get(key)
}

// membersIn returns the members in a bucket, which may be nil. A member that cannot be decoded is included, but all
// its fields are empty.
func membersIn(bucket *bolt.Bucket) map[uint64]membership.Member {
	members := map[uint64]membership.Member{}
	if bucket == nil {
		return members
	}
	_ = bucket.ForEach(func(key, value []byte) error { // the callback never returns an error
		var member membership.Member
		if json.Unmarshal(value, &member) != nil {
			member = membership.Member{}
		}
		if id, err := strconv.ParseUint(string(key), 16, 64); err == nil {
			members[id] = member
		}
		return nil
	})
	return members
}

// scanRevisions reads all revisions of all keys and checks their format, order and values. Corruption that leaves a
// value well-formed is not detected: bbolt and etcd do not store checksums of values, and the values cannot be
// recomputed from the log, because the log does not record which requests failed.
func scanRevisions(ctx context.Context, tx *bolt.Tx) error {
	keys := tx.Bucket(schema.Key.Name())
	if keys == nil {
		return nil
	}
	compacted := compactRevision(tx)
	cursor, previous, count := keys.Cursor(), mvcc.Revision{Main: -1}, 0
	var stored mvccpb.KeyValue
	for key, value := cursor.First(); key != nil; key, value = cursor.Next() {
		if count++; count%checkInterval == 0 && ctx.Err() != nil {
			return fmt.Errorf("reading the revisions was interrupted: %w", context.Cause(ctx))
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

// verifyRevision returns an error if the revision in the bucket key differs from the revision in the value. Two kinds
// of values contain no revision and are accepted: for a deletion, etcd stores only the key, and "etcdutl snapshot
// restore --bump-revision --mark-compacted" stores the new revision with an empty value and marks it as compacted.
// The caller reuses stored for all revisions to reduce allocations.
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
		return revision, fmt.Errorf("the value belongs to revision %d", stored.ModRevision)
	case stored.CreateRevision > stored.ModRevision || stored.Version < 1:
		return revision, errors.New("invalid create revision or version")
	}
	return revision, nil
}

// compactRevision returns the revision up to which etcd has compacted the keys or will compact them at startup.
func compactRevision(tx *bolt.Tx) (compacted int64) {
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

// quotedFindings is the maximum number of bbolt findings quoted in an error.
const quotedFindings = 3

// A database starts with two meta pages, which transactions write alternately. bbolt opens the database with the
// newest intact meta page. No data is lost if one meta page is damaged: the other one refers to a complete earlier
// state, and etcd replays the log from the index applied in that state.

// Byte offsets in a meta page, from internal/common/page.go and meta.go in bbolt.
const (
	pageFlags    = 8
	metaBegins   = 16
	metaSum      = metaBegins + 56
	metaEnds     = metaSum + 8
	metaPageFlag = 4
)

// corruptMetaPages returns the numbers of the damaged meta pages.
func corruptMetaPages(tx *bolt.Tx) (damaged []int, err error) {
	file, err := os.Open(tx.DB().Path())
	if err != nil {
		return nil, err
	}
	defer file.Close() // opened read-only, so a close error is harmless
	for number := range 2 {
		head := make([]byte, metaEnds)
		if _, err := io.ReadFull(io.NewSectionReader(file, int64(number*tx.DB().Info().PageSize), metaEnds), head); err != nil {
			return nil, fmt.Errorf("cannot read meta page %d: %w", number, err)
		}
		if !isMetaPage(head, uint64(number)) { //nolint:gosec // number is 0 or 1
			damaged = append(damaged, number)
		}
	}
	return damaged, nil
}

func isMetaPage(head []byte, number uint64) bool {
	sum := fnv.New64a()
	_, _ = sum.Write(head[metaBegins:metaSum]) // never fails
	return binary.NativeEndian.Uint64(head) == number &&
		binary.NativeEndian.Uint16(head[pageFlags:]) == metaPageFlag &&
		binary.NativeEndian.Uint64(head[metaSum:]) == sum.Sum64()
}

// verifyPages returns an error if a page is corrupt. It runs the bbolt check, unless a meta page is damaged: the
// check panics on a damaged meta page, even though bbolt needs only one of the two. In that case, verifyPages reads
// all buckets instead, which detects everything except unreachable pages and pages that are referenced twice.
func verifyPages(ctx context.Context, tx *bolt.Tx, m *member) error {
	damaged, err := corruptMetaPages(tx)
	if err != nil {
		return err
	}
	if len(damaged) == 0 {
		return checkPages(ctx, tx)
	}
	m.warn("database %s: meta page %d is damaged; etcd uses the other meta page and replays later entries from the log", m.database, damaged[0])
	return tx.ForEach(func(name []byte, bucket *bolt.Bucket) error {
		if err := readAll(ctx, bucket); err != nil {
			return fmt.Errorf("bucket %q: %w", name, err)
		}
		return nil
	})
}

// checkPages runs the bbolt check. The check cannot be cancelled, so checkPages drains all findings even if ctx is
// done.
func checkPages(ctx context.Context, tx *bolt.Tx) error {
	var first []string
	count := 0
	for finding := range tx.Check() {
		if count++; count <= quotedFindings {
			first = append(first, fmt.Sprintf("%.200s", finding))
		}
	}
	if count > 0 {
		return fmt.Errorf("bbolt check failed: %s (errors in total: %d)", strings.Join(first, "; "), count)
	}
	return ctx.Err()
}

// readAll visits all pages of a bucket and returns an error if the keys are out of order. If a page is invalid, bbolt
// panics, and readDB converts the panic to an error.
func readAll(ctx context.Context, bucket *bolt.Bucket) error {
	var previous []byte
	count := 0
	return bucket.ForEach(func(key, _ []byte) error {
		if previous != nil && string(previous) >= string(key) {
			return errors.New("keys are out of order")
		}
		if count++; count%checkInterval == 0 && ctx.Err() != nil {
			return fmt.Errorf("read interrupted: %w", context.Cause(ctx))
		}
		previous = key
		return nil
	})
}

// preload fills the page cache by reading the whole file in the background until the returned function is called.
// Without preload, each page is read from the disk separately, because bbolt maps the file for random access. Using
// madvise instead would not help: Linux reads a single readahead window and ignores the rest. Errors are ignored
// because the caller will encounter the same ones.
func preload(path string) (stop func()) {
	file, err := os.Open(path)
	if err != nil {
		return func() {}
	}
	var reading sync.WaitGroup
	reading.Go(func() {
		for content := make([]byte, 1<<20); err == nil; {
			_, err = file.Read(content)
		}
	})
	return func() {
		_ = file.Close() // makes the next read fail, which stops the reader
		reading.Wait()
	}
}
