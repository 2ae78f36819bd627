package datadir

import (
	"bytes"
	"context"
	"errors"
	"hash/maphash"
	"os"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"google.golang.org/protobuf/encoding/protowire"
)

// Position describes the data of a stopped member: the cluster and the member that it belongs to, and its last
// revision and entry. Missing values are zero.
type Position struct {
	ClusterID, MemberID uint64   // IDs in the log
	Members             int      // number of cluster members in the database
	Voters              int      // number of voting members; 0 if the log has membership changes that the database lacks
	Learner             bool     // according to the database, this member is a learner
	Removed             bool     // according to the database, this member was removed from the cluster
	Known               []string // hexadecimal IDs of the current and former members
	Revision            int64    // revision of the last row in the database
	// HighestRevision is an upper bound of the revision after etcd has replayed its log, including entries that may
	// not be committed. Some requests in the log change nothing.
	HighestRevision int64
	Index           uint64 // index of the last log entry, or of the snapshot that replaces it

	Name     string   // name of the member in the database; empty if unknown
	PeerURLs []string // URLs of the member in the database; empty if unknown
}

// IsOnlyVoter reports whether the data belongs to the only member with a vote, so that etcd can continue with it
// alone.
func (p Position) IsOnlyVoter() bool { return p.Voters == 1 && !p.Learner }

// ReadPosition reads a member's position. The data need not be valid; ReadPosition changes nothing. It returns an
// error for a file that exists and cannot be read, so without an error zero means missing.
func ReadPosition(dataDir string) (p Position, err error) {
	m := survey(dataDir, "")
	identity, err := m.identity()
	p.ClusterID, p.MemberID = identity.ClusterID, identity.NodeID
	unread := errors.Join(m.root.readError(), m.dir.readError(), m.wal.readError(), m.snap.readError(), err)
	found, err := p.read(m)
	unread = errors.Join(unread, err)
	log := history{listsWrites: true}
	err = log.skimSegments(m, m.segmentsFrom(found.applied))
	self := found.members[p.MemberID]
	p.Name, p.PeerURLs, p.Learner = self.Name, self.PeerURLs, self.IsLearner
	_, p.Removed = found.removedMembers[p.MemberID]
	p.Members, p.Index = len(found.members), max(log.last, found.applied)
	isNew := func(index uint64) bool { return index > found.applied }
	if !slices.ContainsFunc(log.notes, func(n note) bool { return n.change != nil && isNew(n.index) }) {
		p.Voters = found.voterCount()
	}
	writes := int64(len(slices.DeleteFunc(log.writes, func(index uint64) bool { return !isNew(index) })))
	if p.HighestRevision = p.Revision; p.MemberID != 0 || writes > 0 {
		p.HighestRevision = max(p.Revision, 1) + writes // etcd is at revision 1 before the first change
	}
	return p, errors.Join(unread, err)
}

// read reads the database. It skips one that etcd has not written to yet.
func (p *Position) read(m *member) (found contents, err error) {
	if none, err := isDBEmpty(m.database); err != nil || none {
		return contents{}, err
	}
	err = readDB(m.database, func(tx *bolt.Tx) (err error) {
		found, err = readContents(tx)
		if last := lastRevision(tx); last != nil {
			p.Revision = mvcc.BytesToBucketKey(last).Main
		}
		for _, members := range []map[uint64]membership.Member{found.members, found.removedMembers} {
			for id := range members {
				p.Known = append(p.Known, types.ID(id).String())
			}
		}
		return err
	})
	return found, err
}

// lastRevision returns the key of the newest row; nil if there is none.
func lastRevision(tx *bolt.Tx) []byte {
	keys := tx.Bucket(schema.Key.Name())
	if keys == nil {
		return nil
	}
	last, _ := keys.Cursor().Last()
	return last
}

// changing lists the field numbers of requests that may change a key (etcd's raft_internal.proto).
var changing = []protowire.Number{4, 5, 6, 9} // put, delete range, transaction, lease revoke

// mayChange reports whether an entry is a request that may create a revision.
func mayChange(entry []byte) bool {
	request := message(entry, entryData)
	return !changesMembers(entry) &&
		slices.ContainsFunc(changing, func(number protowire.Number) bool { return message(request, number) != nil })
}

// maxCompared is the maximum number of rows that are compared, starting with the newest.
const maxCompared = 10_000

// revisionBytes is the size of the revision in a row's key. The key of a deletion has one byte more.
const revisionBytes = 17

// Divergence returns the newest revision for which the two data directories have different rows, apart from the named
// exceptions, or 0 if there is none. Rows never change, so in that case neither directory is an earlier state of the
// other: one was rolled back or copied, and then written to. A row that one of them lacks proves nothing. Neither
// directory may be open for writing.
func Divergence(dataDir, other string, except ...int64) (revision int64, err error) {
	data, others := survey(dataDir, "").database, survey(other, "").database
	err = readDB(data, func(tx *bolt.Tx) error {
		return readDB(others, func(otherTx *bolt.Tx) error {
			rows, otherRows := tx.Bucket(schema.Key.Name()), otherTx.Bucket(schema.Key.Name())
			if rows == nil || otherRows == nil {
				return errors.New("a database is not etcd's: it has no bucket of keys")
			}
			revision = divergence(rows.Cursor(), otherRows.Cursor(), except)
			return nil
		})
	})
	return revision, err
}

func divergence(rows, others *bolt.Cursor, except []int64) int64 {
	key, value := rows.Last()
	for n := 0; key != nil && n < maxCompared; n++ {
		at := key[:revisionBytes]
		found, otherValue := others.Seek(at)
		differs := bytes.HasPrefix(found, at) && (!bytes.Equal(found, key) || !bytes.Equal(otherValue, value))
		if revision := mvcc.BytesToBucketKey(key).Main; differs && !slices.Contains(except, revision) {
			return revision
		}
		key, value = rows.Prev()
	}
	return 0
}

// loggedPuts holds the puts of a log in order. Every row was created by one of them, if the log reaches back that
// far. Some puts created no row: their entries were overridden or rejected, or they are in a branch of a transaction
// that was not taken.
type loggedPuts struct {
	seed maphash.Seed
	puts []loggedPut
}

type loggedPut struct {
	key, value digest
	keepsValue bool // the put keeps the previous value
}

type digest struct {
	hash uint64
	size int
}

func (l *loggedPuts) digest(b []byte) digest { return digest{maphash.Bytes(l.seed, b), len(b)} }

// addEntry adds the puts of the request in an entry.
func (l *loggedPuts) addEntry(entry []byte) {
	var request etcdserverpb.InternalRaftRequest
	if l != nil && !changesMembers(entry) && request.Unmarshal(message(entry, entryData)) == nil {
		l.add(request.Put, request.Txn)
	}
}

// add adds the puts of a request. For a transaction it adds those of both branches, because the log does not record
// which one was taken.
func (l *loggedPuts) add(put *etcdserverpb.PutRequest, txn *etcdserverpb.TxnRequest) {
	if put != nil {
		l.puts = append(l.puts, loggedPut{l.digest(put.Key), l.digest(put.Value), put.IgnoreValue})
	}
	for _, op := range slices.Concat(txn.GetSuccess(), txn.GetFailure()) {
		l.add(op.GetRequestPut(), op.GetRequestTxn())
	}
}

// clear drops the puts that precede a received snapshot.
func (l *loggedPuts) clear() {
	if l != nil {
		l.puts = nil
	}
}

// stores reports whether a put may have created a row.
func (p loggedPut) stores(row loggedPut) bool {
	return p.key == row.key && (p.keepsValue || p.value == row.value)
}

// resembles reports whether a row may be the result of a put, changed by the disk: its key or value may differ, but
// not its size.
func (p loggedPut) resembles(row loggedPut) bool {
	return !p.keepsValue && p.key.size == row.key.size && p.value.size == row.value.size && (p.key == row.key || p.value == row.value)
}

// maxChanged is the maximum number of consecutive rows that the disk may have changed.
const maxChanged = 100

// ChangedRevisions returns the revisions in the database whose values the disk has changed, newest first. The
// database has no checksums, but the log does, so ChangedRevisions compares the rows with the puts in the log,
// starting with the newest. A row counts as changed if no put produces it but it resembles a put between those of its
// neighbours. There must be an older row that agrees with the log, because the log does not cover all rows, and more
// rows must agree than differ. Any other difference ends the comparison, so an empty result does not prove that
// nothing was changed. The data must be valid and must not be open for writing.
func ChangedRevisions(ctx context.Context, dataDir string) (changed []int64, err error) {
	m, logged := survey(dataDir, ""), &loggedPuts{seed: maphash.MakeSeed()}
	if len(m.segments()) == 0 {
		return nil, nil
	}
	if _, err := readLog(ctx, m, logged); err != nil {
		return nil, err
	}
	err = readDB(m.database, func(tx *bolt.Tx) error {
		changed = logged.changedRows(tx.Bucket(schema.Key.Name()).Cursor())
		return nil
	})
	return changed, err
}

// changedRows compares the rows with the puts.
func (l *loggedPuts) changedRows(rows *bolt.Cursor) (changed []int64) {
	var differ []loggedPut // rows since the last one that agrees with the log
	var revisions []int64  // revisions of the rows in differ
	agree, puts := 0, l.puts
	for key, value := rows.Last(); key != nil && agree < maxCompared && len(differ) <= maxChanged; key, value = rows.Prev() {
		var stored mvccpb.KeyValue
		if len(key) > revisionBytes || stored.Unmarshal(value) != nil { // the row is a deletion or unreadable
			continue
		}
		row := loggedPut{key: l.digest(stored.Key), value: l.digest(stored.Value)}
		at := len(puts) - 1
		for at >= 0 && !puts[at].stores(row) {
			at--
		}
		if at < 0 {
			differ, revisions = append(differ, row), append(revisions, mvcc.BytesToBucketKey(key).Main)
			continue
		}
		if !areChanges(differ, puts[at+1:]) {
			break
		}
		agree, changed = agree+1, append(changed, revisions...)
		differ, revisions, puts = nil, nil, puts[:at]
	}
	if len(changed) >= agree {
		return nil
	}
	return changed
}

// areChanges reports whether each row resembles one of the puts.
func areChanges(rows, puts []loggedPut) bool {
	for _, row := range rows {
		if !slices.ContainsFunc(puts, func(p loggedPut) bool { return p.resembles(row) }) {
			return false
		}
	}
	return true
}

// LastWrite returns the time at which etcd last wrote to the log of a data directory, according to the file system.
// No write was acknowledged later. If another program has written there since, the time is too late. It is zero if
// there is no readable log.
func LastWrite(dataDir string) (last time.Time) {
	m := survey(dataDir, "")
	for _, name := range m.segments() {
		if info, err := os.Lstat(m.segment(name)); err == nil && info.ModTime().After(last) {
			last = info.ModTime()
		}
	}
	return last
}
