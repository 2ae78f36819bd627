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

// Position describes the data of a stopped member: its cluster, its identity, and its last revision and log entry.
// Missing values are zero.
type Position struct {
	ClusterID, MemberID uint64   // IDs from the log
	Members             int      // number of members in the database
	Voters              int      // number of voting members; 0 (unknown) if the log has newer membership changes
	Learner             bool     // the database lists this member as a learner
	Removed             bool     // the database lists this member as removed
	Known               []string // hexadecimal IDs of current and removed members
	Revision            int64    // revision of the last key in the database
	// HighestRevision is an upper bound for the revision after etcd has replayed the log. The bound includes
	// entries that may not be committed or may not change a key.
	HighestRevision int64
	Index           uint64 // index of the last log entry or snapshot

	Name     string   // name of the member in the database, or ""
	PeerURLs []string // peer URLs of the member in the database
}

// IsOnlyVoter reports whether this member is the only voter, in which case etcd can continue without the other
// members.
func (p Position) IsOnlyVoter() bool { return p.Voters == 1 && !p.Learner }

// ReadPosition reads the position of a member without validating or changing the data. It returns an error if an
// existing file cannot be read. If the error is nil, a zero field means that the data does not contain the value.
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
		p.HighestRevision = max(p.Revision, 1) + writes // etcd starts at revision 1
	}
	return p, errors.Join(unread, err)
}

// read reads the database unless it is missing or empty.
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

// lastRevision returns the newest bucket key, or nil if there are no keys.
func lastRevision(tx *bolt.Tx) []byte {
	keys := tx.Bucket(schema.Key.Name())
	if keys == nil {
		return nil
	}
	last, _ := keys.Cursor().Last()
	return last
}

// changing lists the field numbers in raft_internal.proto of requests that may change a key.
var changing = []protowire.Number{4, 5, 6, 9} // put, delete range, transaction, lease revoke

// mayChange reports whether an entry is a request that may create a revision.
func mayChange(entry []byte) bool {
	request := message(entry, entryData)
	return !changesMembers(entry) &&
		slices.ContainsFunc(changing, func(number protowire.Number) bool { return message(request, number) != nil })
}

// maxCompared is the maximum number of rows to compare, newest first.
const maxCompared = 10_000

// revisionBytes is the size of the revision in a bucket key. The bucket key of a deletion has one more byte.
const revisionBytes = 17

// Divergence returns the newest revision, other than those in except, for which the two data directories have
// different rows, or 0 if there is none. Rows never change, so a difference means that neither directory is an
// earlier state of the other: one was rolled back or copied and then written to. A row that exists in only one
// directory is not a difference. Divergence must not be called while either directory is open for writing.
func Divergence(dataDir, other string, except ...int64) (revision int64, err error) {
	data, others := survey(dataDir, "").database, survey(other, "").database
	err = readDB(data, func(tx *bolt.Tx) error {
		return readDB(others, func(otherTx *bolt.Tx) error {
			rows, otherRows := tx.Bucket(schema.Key.Name()), otherTx.Bucket(schema.Key.Name())
			if rows == nil || otherRows == nil {
				return errors.New("not an etcd database: the key bucket is missing")
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

// loggedPuts holds the puts in the log, in order. If the log is complete, every row was created by one of these
// puts. A put creates no row if its entry was overwritten or rejected, or if it is in a transaction branch that was
// not executed.
type loggedPuts struct {
	seed maphash.Seed
	puts []loggedPut
}

type loggedPut struct {
	key, value digest
	keepsValue bool // keeps the previous value
}

type digest struct {
	hash uint64
	size int
}

func (l *loggedPuts) digest(b []byte) digest { return digest{maphash.Bytes(l.seed, b), len(b)} }

// addEntry adds the puts in an entry.
func (l *loggedPuts) addEntry(entry []byte) {
	var request etcdserverpb.InternalRaftRequest
	if l != nil && !changesMembers(entry) && request.Unmarshal(message(entry, entryData)) == nil {
		l.add(request.Put, request.Txn)
	}
}

// add adds the puts of a request. Both branches of a transaction are added, because the log does not record which
// branch was executed.
func (l *loggedPuts) add(put *etcdserverpb.PutRequest, txn *etcdserverpb.TxnRequest) {
	if put != nil {
		l.puts = append(l.puts, loggedPut{l.digest(put.Key), l.digest(put.Value), put.IgnoreValue})
	}
	for _, op := range slices.Concat(txn.GetSuccess(), txn.GetFailure()) {
		l.add(op.GetRequestPut(), op.GetRequestTxn())
	}
}

// clear removes the puts before a received snapshot.
func (l *loggedPuts) clear() {
	if l != nil {
		l.puts = nil
	}
}

// stores reports whether a put may have created a row.
func (p loggedPut) stores(row loggedPut) bool {
	return p.key == row.key && (p.keepsValue || p.value == row.value)
}

// resembles reports whether a row may be the result of a put whose key or value was altered by the disk without
// changing its size.
func (p loggedPut) resembles(row loggedPut) bool {
	return !p.keepsValue && p.key.size == row.key.size && p.value.size == row.value.size && (p.key == row.key || p.value == row.value)
}

// maxChanged limits the number of consecutive rows that do not match the log. After more of them, ChangedRevisions
// stops comparing.
const maxChanged = 100

// ChangedRevisions returns the revisions whose keys or values were altered by the disk, newest first. Unlike the
// database, the log has checksums, so ChangedRevisions compares the rows in the database with the puts in the log,
// newest first.
//
// A row counts as altered if no put produces it but the row resembles a put at that position in the log. At least
// one older row must match the log, because the log does not cover all rows, and matching rows must outnumber
// altered ones. The comparison stops at any other difference, so an empty result does not prove that the data is
// unaltered. The data must be valid and must not be open for writing.
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

func (l *loggedPuts) changedRows(rows *bolt.Cursor) (changed []int64) {
	var differ []loggedPut // rows seen since the last row that matched the log
	var revisions []int64  // revisions of these rows
	agree, puts := 0, l.puts
	for key, value := rows.Last(); key != nil && agree < maxCompared && len(differ) <= maxChanged; key, value = rows.Prev() {
		var stored mvccpb.KeyValue
		if len(key) > revisionBytes || stored.Unmarshal(value) != nil { // a deletion, or unreadable
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

// areChanges reports whether every row resembles one of the puts.
func areChanges(rows, puts []loggedPut) bool {
	for _, row := range rows {
		if !slices.ContainsFunc(puts, func(p loggedPut) bool { return p.resembles(row) }) {
			return false
		}
	}
	return true
}

// LastWrite returns the modification time of the log, or the zero time if there is no readable log. No write was
// acknowledged after the returned time. The time is too late if another program has written to the log since.
func LastWrite(dataDir string) (last time.Time) {
	m := survey(dataDir, "")
	for _, name := range m.segments() {
		if info, err := os.Lstat(m.segment(name)); err == nil && info.ModTime().After(last) {
			last = info.ModTime()
		}
	}
	return last
}
