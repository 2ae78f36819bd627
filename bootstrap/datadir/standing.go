package datadir

import (
	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"google.golang.org/protobuf/encoding/protowire"
)

// Standing is where a member stands that does not run: whose it is, and how far its data go. What can't be read is zero.
type Standing struct {
	ClusterID, MemberID uint64 // of the log's
	Members             int    // of the cluster, as the database knows them
	Revision            int64  // of the last row in the database
	// Reach is the highest revision that etcd can come to with what its log holds beyond the database. It may be less: not
	// every request in the log has changed something.
	Reach int64
	Index uint64 // of the last entry in the log, or of what stands for it
}

// Stand reads where a member stands. The data need not be valid; nothing is changed.
func Stand(dataDir string) (s Standing) {
	m := survey(dataDir, "")
	if segments := m.segments(); len(segments) > 0 {
		if identity, err := headOf(m.segment(segments[0])); err == nil {
			s.ClusterID, s.MemberID = identity.ClusterID, identity.NodeID
		}
	}
	var found contents
	err := readDatabase(m.database, func(tx *bolt.Tx) (err error) {
		s.Revision = lastRevision(tx)
		found, err = readContents(tx)
		s.Members = len(found.members)
		return err
	})
	s.Reach = s.Revision
	if err == nil {
		changes, last := m.changesBehind(found.applied)
		s.Reach, s.Index = s.Reach+changes, max(last, found.applied)
	}
	return s
}

func lastRevision(tx *bolt.Tx) int64 {
	keys := tx.Bucket(schema.Key.Name())
	if keys == nil {
		return 0
	}
	last, _ := keys.Cursor().Last()
	if last == nil {
		return 0
	}
	return mvcc.BytesToBucketKey(last).Main
}

// changesBehind counts the entries of the log behind an index that may each have made a revision. Long values are stepped
// over. last is the index of the log's last entry.
func (m *member) changesBehind(index uint64) (changes int64, last uint64) {
	seen := map[uint64]bool{} // an entry is written again after a change of leader
	for _, name := range m.segmentsFrom(index) {
		_ = readSegment(m.segment(name), func(s *segment) error { // what can't be read changes nothing
			for frame := range s.frames() {
				r, err := frame.parse()
				switch {
				case err != nil:
				case r.kind == wal.SnapshotType:
					last = max(last, varint(r.data, 1))
				case r.kind == wal.EntryType:
					last = entryIndex(r.data)
					if last > index && mayChange(r.data) {
						seen[last] = true
					}
				}
			}
			return nil
		})
	}
	return int64(len(seen)), last
}

// The numbers of the requests that may change a key (etcd's raft_internal.proto).
var changing = map[protowire.Number]bool{4: true, 5: true, 6: true, 9: true} // put, delete range, transaction, lease revoked

// mayChange says that an entry is a request that may make a revision.
func mayChange(entry []byte) bool {
	if varint(entry, 1) != 0 { // it changes the members
		return false
	}
	for request := message(entry, entryData); len(request) > 0; {
		number, kind, n := protowire.ConsumeTag(request)
		if n < 0 {
			return false
		}
		if changing[number] && kind == protowire.BytesType {
			return true
		}
		request = request[n:]
		if n = protowire.ConsumeFieldValue(number, kind, request); n < 0 {
			return false
		}
		request = request[n:]
	}
	return false
}
