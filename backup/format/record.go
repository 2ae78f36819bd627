// Package format is what backups look like as bytes, as docs/backup-format.md describes it for others. It knows no store and no etcd.
//
// A segment is what lies between full snapshots: the rows of a range of revisions, as they are in etcd's database (record.go,
// builder.go, reader.go). Every object is compressed, encrypted to age recipients, and described by a line of JSON that carries a
// checksum and an ed25519 signature (keys.go, seal.go, stream.go, line.go).
//
// Encryption keeps others from reading a backup; it does not keep them from making one, since recipients are public. Only
// signatures do.
package format

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"iter"
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

// Bucket is the whole content of one of etcd's small buckets, such as lease or authUsers. It may be large all the same, so it
// is kept in one piece of memory.
type Bucket struct {
	Name string

	count   uint64
	entries []byte // each: length of the key, key, length of the value, value; lengths as uvarints
}

// NewBucket returns an empty one.
func NewBucket(name string) *Bucket { return &Bucket{Name: name} }

// Add adds an entry; the keys must come in order.
func (b *Bucket) Add(key, value []byte) {
	b.count++
	b.entries = binary.AppendUvarint(b.entries, uint64(len(key)))
	b.entries = append(b.entries, key...)
	b.entries = binary.AppendUvarint(b.entries, uint64(len(value)))
	b.entries = append(b.entries, value...)
}

// Len is how many entries there are.
func (b *Bucket) Len() int { return int(b.count) }

// Digest tells contents apart.
func (b *Bucket) Digest() Digest { return sha256.Sum256(b.entries) }

// Entries yields keys and values in order. They belong to the bucket.
func (b *Bucket) Entries() iter.Seq2[[]byte, []byte] {
	return func(yield func([]byte, []byte) bool) {
		for rest := b.entries; len(rest) > 0; {
			var key, value []byte
			key, rest, _ = cut(rest)
			value, rest, _ = cut(rest)
			if !yield(key, value) {
				return
			}
		}
	}
}

var errBucket = errors.New("entries of a bucket don't fit it")

// cut takes bytes off that begin with their length.
func cut(b []byte) (first, rest []byte, err error) {
	length, n := binary.Uvarint(b)
	if n <= 0 || length > uint64(len(b)-n) {
		return nil, nil, errBucket
	}
	return b[n : n+int(length) : n+int(length)], b[n+int(length):], nil
}

// check is for buckets that were read.
func (b *Bucket) check() error {
	var count uint64
	var before []byte
	for rest := b.entries; len(rest) > 0; count++ {
		key, behind, err := cut(rest)
		if err != nil {
			return err
		}
		if _, rest, err = cut(behind); err != nil {
			return err
		}
		if count > 0 && bytes.Compare(before, key) >= 0 {
			return fmt.Errorf("entries of bucket %.40q are out of order", b.Name)
		}
		before = key
	}
	if count != b.count || b.Name == "" {
		return errBucket
	}
	return nil
}

// maxPart bounds the segments without rows at one revision. Segments are made once a second at most: that is 31 years.
const maxPart = 999_999_999

// Position is where a segment begins, and names it. Positions have the order of history.
type Position struct {
	Revision int64 `json:"revision"` // the first one that is not covered yet
	Part     int   `json:"part"`     // how many segments without rows stand before this one at that revision
}

// String is the position in names of objects: the order of such strings is that of positions.
func (p Position) String() string { return fmt.Sprintf("%019d.%09d", p.Revision, p.Part) }

// ParsePosition undoes String.
func ParsePosition(s string) (Position, error) {
	var p Position
	if _, err := fmt.Sscanf(s, "%019d.%09d", &p.Revision, &p.Part); err != nil || p.String() != s || !p.Valid() {
		return Position{}, fmt.Errorf("%q is not a position", s)
	}
	return p, nil
}

// Valid tells whether a segment can begin there.
func (p Position) Valid() bool { return p.Revision > 0 && p.Part >= 0 && p.Part <= maxPart }

// Compare is negative if p comes before other, and positive if it comes behind.
func (p Position) Compare(other Position) int {
	return cmp.Or(cmp.Compare(p.Revision, other.Revision), cmp.Compare(p.Part, other.Part))
}

// IsZero tells whether p is no position.
func (p Position) IsZero() bool { return p == Position{} }

// After is the position behind revision.
func After(revision int64) Position { return Position{Revision: revision + 1} }

// Digest is a SHA-256. In JSON it is lower-case hexadecimal.
type Digest [sha256.Size]byte

// String is hexadecimal.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// MarshalText is String, for JSON.
func (d Digest) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText undoes MarshalText.
func (d *Digest) UnmarshalText(text []byte) error {
	if len(text) != 2*len(d) {
		return errors.New("not a digest of 64 hexadecimal digits")
	}
	_, err := hex.Decode(d[:], text)
	return err
}

// Seed is the digest that a chain begins with, at the full of that revision.
func Seed(cluster string, generation int, revision int64) Digest {
	return sha256.Sum256(fmt.Appendf(nil, "etcd-wrapper chain\n%s\n%d\n%d\n", cluster, generation, revision))
}

// Chain computes the digest over all rows since a full. It doesn't depend on how they were cut into segments:
//
//	C(r) = SHA-256(C(before r) || r as 8 bytes, big endian || SHA-256(rows of r))
//
// where each row is the length of its key, the key, the length of its value and the value, lengths as uvarints. Revisions
// without rows don't count. One goroutine owns it.
type Chain struct {
	digest   Digest // over all revisions before the present one
	last     Digest // over the rows of the revision before the present one
	revision int64  // the present one, or the one before the first
	open     bool   // rows of the present revision were added
	rows     hash.Hash
	key      []byte // of the row before
	scratch  []byte
}

// Continue returns a chain whose digest is before, at the position.
func Continue(before Digest, position Position) *Chain {
	return &Chain{digest: before, revision: position.Revision - 1, rows: sha256.New()}
}

var errOrder = errors.New("rows are out of order")

// Add adds the next row. An error says that it cannot be the next one; then nothing was added.
func (c *Chain) Add(row Row) error {
	revision, err := row.Revision()
	if err != nil {
		return err
	}
	if revision < c.revision || revision == c.revision && !c.open || bytes.Compare(row.Key, c.key) <= 0 {
		return errOrder
	}
	if c.open && revision > c.revision {
		c.close()
	}
	c.revision, c.open, c.key = revision, true, append(c.key[:0], row.Key...)
	c.scratch = binary.AppendUvarint(c.scratch[:0], uint64(len(row.Key)))
	c.scratch = append(c.scratch, row.Key...)
	c.scratch = binary.AppendUvarint(c.scratch, uint64(len(row.Value)))
	c.rows.Write(c.scratch)
	c.rows.Write(row.Value)
	return nil
}

// close ends the present revision.
func (c *Chain) close() {
	c.rows.Sum(c.last[:0])
	c.rows.Reset()
	next := sha256.New()
	next.Write(c.digest[:])
	next.Write(binary.BigEndian.AppendUint64(nil, uint64(c.revision)))
	next.Write(c.last[:])
	next.Sum(c.digest[:0])
	c.open = false
}

// Revision is that of the last row, or of the one before the first.
func (c *Chain) Revision() int64 { return c.revision }

// End returns the digest over all rows so far, and that of the last revision's alone, which is zero if there was no row. The
// last revision is then complete: no row of it may follow.
func (c *Chain) End() (digest, last Digest) {
	if c.open {
		c.close()
	}
	return c.digest, c.last
}

// SegmentKind is that of a segment's statement.
const SegmentKind = "segment"

// Manifest is the statement that every segment begins with.
type Manifest struct {
	Heading
	Cluster    string    `json:"cluster"`            // the store's
	Generation int       `json:"generation"`         // the history between two restores
	Position   Position  `json:"position"`           // where it begins
	End        int64     `json:"end"`                // the last revision that it covers; Position.Revision-1 without rows
	Rows       int64     `json:"rows"`               // how many
	RawBytes   int64     `json:"raw_bytes"`          // of the records, before compression
	Before     Digest    `json:"before"`             // the chain's digest at Position
	After      Digest    `json:"after"`              // the chain's digest behind End
	Last       Digest    `json:"last,omitzero"`      // over the rows of the last revision with rows up to End; zero if unknown
	Compacted  int64     `json:"compacted"`          // etcd's scheduled compaction, read with the rows; 0 before the first one
	From       time.Time `json:"from,omitzero"`      // the first marker's time; zero without markers
	To         time.Time `json:"to,omitzero"`        // the last marker's time
	Term       uint64    `json:"term"`               // raft's
	Member     string    `json:"member"`             // who wrote it: etcd's member id, hexadecimal
	Session    string    `json:"session,omitempty"`  // of the process that wrote it: random, hexadecimal
	Released   bool      `json:"released,omitzero"`  // its writer has ended in order: it adds nothing behind it
	Opens      Position  `json:"opens,omitzero"`     // a full snapshot begins another chain, which goes on there; zero if none does
	Ends       *Ending   `json:"ends,omitempty"`     // the generation ends here: nothing follows, ever; nil if it does not
	Applied    uint64    `json:"applied,omitzero"`   // raft's index that its writer had applied, as in Source, or that of the segment before
	Buckets    []string  `json:"buckets,omitempty"`  // names of the small buckets inside
	Body       Body      `json:"body"`               // what follows the line
	Encrypted  bool      `json:"encrypted,omitzero"` // with age
}

// Ending is what the last object of a generation says of who goes on. It is made at the position where the next segment
// would go, so that no segment can follow what a restore has read.
type Ending struct {
	Successor int       `json:"successor"` // the generation that goes on
	Nonce     string    `json:"nonce"`     // of who ends it: random, hexadecimal
	At        time.Time `json:"at"`
}

// Next is where the next segment begins.
func (m Manifest) Next() Position {
	if m.Rows > 0 {
		return After(m.End)
	}
	return Position{Revision: m.Position.Revision, Part: m.Position.Part + 1}
}

// Start is what the next segment goes on from.
func (m Manifest) Start() Start {
	return Start{Cluster: m.Cluster, Generation: m.Generation, Position: m.Next(), Before: m.After, Last: m.Last, Applied: m.Applied}
}

// maxRaw bounds a segment's records in bytes: 8 MiB and one revision, which may have deleted all keys there were.
const maxRaw = 16 << 30

// check finds what contradicts itself.
func (m Manifest) check() error {
	switch {
	case m.Cluster == "" || m.Generation <= 0 || !m.Position.Valid():
		return errors.New("it doesn't say what it is of")
	case m.Rows < 0 || m.RawBytes < 0 || m.RawBytes > maxRaw || m.Body.Bytes < 0 || m.Body.Bytes > maxRaw:
		return fmt.Errorf("it claims %d rows and %d bytes", m.Rows, m.RawBytes)
	case m.Rows > 0 && (m.Released || !m.Opens.IsZero() || m.Ends != nil):
		return errors.New("it says that something ends, and has rows")
	case m.Ends != nil && (m.Ends.Successor <= m.Generation || m.Ends.Nonce == ""):
		return errors.New("it does not say who goes on")
	case m.Rows == 0 && (m.End != m.Position.Revision-1 || m.Before != m.After),
		m.Rows > 0 && (m.End < m.Position.Revision || m.Last == Digest{}):
		return fmt.Errorf("it has %d rows from %s to %d", m.Rows, m.Position, m.End)
	}
	return nil
}
