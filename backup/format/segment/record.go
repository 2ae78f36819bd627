// Package segment is the format of what backups consist of between fulls: the rows of a range of revisions, as they are in
// etcd's database. docs/backup-format.md describes it for others.
package segment

import (
	"encoding/binary"
	"fmt"
	"time"
)

// Record is one of the things that a segment consists of: *[Row], *[Marker], *[CompactionHash] or *[Bucket].
type Record interface{ record() }

// Row is a row of etcd's bucket named key. Its key has 17 bytes: the revision as 8, big endian, '_' and what distinguishes the
// changes of one revision as 8; and one more, 't', if it says that a key was deleted. Its value may be empty.
type Row struct {
	Key, Value []byte
}

// Marker says what etcd's revision was at a time. It stands behind all rows up to that revision.
type Marker struct {
	Revision int64
	Time     time.Time // to the millisecond
}

// CompactionHash is what etcd's hash of the revisions up to one was when it compacted them.
type CompactionHash struct {
	Revision, Compacted int64 // what was hashed: up to this revision, of a database that was compacted at that one
	Hash                uint32
}

func (*Row) record()            {}
func (*Marker) record()         {}
func (*CompactionHash) record() {}
func (*Bucket) record()         {}

const (
	rowKey       = 17
	tombstoneKey = rowKey + 1
	// maxRecord bounds the bytes of a row, and of a bucket. etcd's largest request is 1.5 MiB unless told otherwise.
	maxRecord = 256 << 20
)

// Revision is what the row belongs to. An error says that its key is not that of a row.
func (r Row) Revision() (int64, error) {
	plain := len(r.Key) == rowKey && r.Key[8] == '_'
	tombstone := len(r.Key) == tombstoneKey && r.Key[8] == '_' && r.Key[rowKey] == 't'
	if !plain && !tombstone || r.Key[0] >= 0x80 {
		return 0, fmt.Errorf("a key of %d bytes is not that of a row", len(r.Key))
	}
	return int64(binary.BigEndian.Uint64(r.Key)), nil
}

// Tombstone tells whether the row says that a key was deleted.
func (r Row) Tombstone() bool { return len(r.Key) == tombstoneKey }

// The byte that each record begins with.
const (
	typeRow    = 'R'
	typeMarker = 'M'
	typeBucket = 'B'
	typeHash   = 'H'
	typeEnd    = 'Z'
)
