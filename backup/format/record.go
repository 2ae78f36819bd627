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
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Record is a part of a segment: *[Row], *[Marker], *[Hash] or *[Bucket].
type Record interface {
	// addTo checks that the record may follow those of a segment, and counts it.
	addTo(*sequence) error
	// encode appends the fields of the record to b. The large value that follows them is returned on its own.
	encode(b []byte) (fields, value []byte)
	// decode reads what follows the type of the record.
	decode(*SegmentReader) error
}

// Row is a row of etcd's bucket named key. Its key has 17 bytes: the revision (8, big endian), '_', and the number
// of the change within the revision (8); a deletion has a final 't'. Its value may be empty.
type Row struct {
	Key, Value []byte
}

// Marker records etcd's revision at a time. It follows all rows up to that revision.
type Marker struct {
	Revision int64
	Time     time.Time // precise to the millisecond
}

// Hash is etcd's hash of the revisions up to one, as HashKV returns it, or as it was computed when they were compacted.
type Hash struct {
	Revision  int64  `json:"revision"` // revision up to which the rows were hashed
	Compacted int64  `json:"compact"`  // compacted revision of the database; 0 before its first compaction
	Hash      uint32 `json:"hash"`
}

const (
	rowKey       = 17
	tombstoneKey = rowKey + 1
)

// Revision returns the row's revision, or an error if the key does not belong to a row.
func (r Row) Revision() (int64, error) {
	plain := len(r.Key) == rowKey && r.Key[8] == '_'
	tombstone := len(r.Key) == tombstoneKey && r.Key[8] == '_' && r.Key[rowKey] == 't'
	if !plain && !tombstone || r.Key[0] >= 0x80 {
		return 0, fmt.Errorf("a row key cannot have %d bytes", len(r.Key))
	}
	return int64(binary.BigEndian.Uint64(r.Key)), nil
}

// Tombstone reports whether the row deletes a key.
func (r Row) Tombstone() bool { return len(r.Key) == tombstoneKey }

// Bucket is the whole content of a small bucket of etcd, such as lease or authUsers. It may still be large, so it
// is one allocation.
type Bucket struct {
	Name string

	count   uint64
	entries []byte // each: length of the key, key, length of the value, value; lengths as uvarints
}

// NewBucket returns an empty bucket.
func NewBucket(name string) *Bucket { return &Bucket{Name: name} }

// Add adds an entry. Keys must be in order.
func (b *Bucket) Add(key, value []byte) {
	b.count++
	b.entries = appendBytes(appendBytes(b.entries, key), value)
}

// Len returns the number of entries.
func (b *Bucket) Len() int { return int(b.count) }

// Digest identifies the content.
func (b *Bucket) Digest() Digest { return sha256.Sum256(b.entries) }

// Entries yields keys and values in order, without copying.
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

var errBucket = errors.New("the entries of a bucket are malformed")

// cut splits off bytes that are preceded by their length.
func cut(b []byte) (first, rest []byte, err error) {
	length, n := binary.Uvarint(b)
	if n <= 0 || length > uint64(len(b)-n) {
		return nil, nil, errBucket
	}
	return b[n : n+int(length) : n+int(length)], b[n+int(length):], nil
}

// check validates a bucket that was read.
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

// maxPart limits the segments without rows at one revision. There is at most one a second: enough for 31 years.
const maxPart = 999_999_999

// Position is the start of a segment, and its name. Positions are ordered like history.
type Position struct {
	Revision int64 `json:"revision"` // first revision that is not covered yet
	Part     int   `json:"part"`     // number of earlier segments without rows at that revision
}

// String returns the position in object names, which sort like positions.
func (p Position) String() string { return fmt.Sprintf("%019d.%09d", p.Revision, p.Part) }

// ParsePosition reverses String.
func ParsePosition(s string) (Position, error) {
	revision, part, _ := strings.Cut(s, ".")
	first, err := strconv.ParseUint(revision, 10, 63)
	count, errPart := strconv.ParseUint(part, 10, 31)
	p := Position{int64(first), int(count)}
	if err != nil || errPart != nil || len(revision) != 19 || len(part) != 9 || !p.Valid() {
		return Position{}, fmt.Errorf("%q is not a position", s)
	}
	return p, nil
}

// Valid reports whether a segment can start there.
func (p Position) Valid() bool { return p.Revision > 0 && p.Part >= 0 && p.Part <= maxPart }

// Compare is negative if p precedes other, and positive if it follows.
func (p Position) Compare(other Position) int {
	return cmp.Or(cmp.Compare(p.Revision, other.Revision), cmp.Compare(p.Part, other.Part))
}

// IsZero reports whether p is unset.
func (p Position) IsZero() bool { return p == Position{} }

// After returns the position after revision.
func After(revision int64) Position { return Position{Revision: revision + 1} }

// Digest is a SHA-256. In JSON it is lower-case hexadecimal.
type Digest [sha256.Size]byte

// String returns the digest in hexadecimal.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// MarshalText implements encoding.TextMarshaler.
func (d Digest) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Digest) UnmarshalText(text []byte) error {
	if len(text) != 2*len(d) {
		return errors.New("a digest must have 64 hexadecimal digits")
	}
	_, err := hex.Decode(d[:], text)
	return err
}

// Seed returns the initial digest of a chain, at the full snapshot of that revision.
func Seed(cluster string, generation int, revision int64) Digest {
	return sha256.Sum256(fmt.Appendf(nil, "etcd-wrapper chain\n%s\n%d\n%d\n", cluster, generation, revision))
}

// Chain computes the digest over all rows since a full snapshot. It does not depend on the division into segments:
//
//	C(r) = SHA-256(C(before r) || r as 8 bytes, big endian || SHA-256(rows of r))
//
// where each row is the length of its key, the key, the length of its value and the value, lengths as uvarints.
// Revisions without rows do not count. It is not safe for concurrent use.
type Chain struct {
	digest   Digest // digest of all revisions before the current one
	last     Digest // digest of the rows of the previous revision
	revision int64  // current revision, or the one before the first
	open     bool   // the current revision has rows
	rows     hash.Hash
	key      []byte // key of the previous row
	scratch  []byte
}

// Continue returns a chain with digest before at the position.
func Continue(before Digest, position Position) *Chain {
	return &Chain{digest: before, revision: position.Revision - 1, rows: sha256.New()}
}

var errOrder = errors.New("rows are out of order")

// Add adds the next row. If the row cannot follow, it returns an error and adds nothing.
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
	c.scratch = appendBytes(c.scratch[:0], row.Key)
	c.scratch = binary.AppendUvarint(c.scratch, uint64(len(row.Value)))
	c.rows.Write(c.scratch)
	c.rows.Write(row.Value)
	return nil
}

// close completes the current revision.
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

// Revision returns the revision of the last row, or the one before the first.
func (c *Chain) Revision() int64 { return c.revision }

// End returns the digest over all rows so far, and that of the last revision alone, which is zero without rows. It
// completes the last revision: no row of it may follow.
func (c *Chain) End() (digest, last Digest) {
	if c.open {
		c.close()
	}
	return c.digest, c.last
}

// SegmentKind is the kind of a segment's statement.
const SegmentKind = "segment"

// Manifest is the statement at the start of every segment.
type Manifest struct {
	Heading
	Cluster    string    `json:"cluster"`            // the store's
	Generation int       `json:"generation"`         // identifies the history between two restores
	Position   Position  `json:"position"`           // start
	End        int64     `json:"end"`                // last covered revision; Position.Revision-1 without rows
	Rows       int64     `json:"rows"`               // how many
	RawBytes   int64     `json:"raw_bytes"`          // size of the records before compression
	Before     Digest    `json:"before"`             // digest of the chain at Position
	After      Digest    `json:"after"`              // digest of the chain after End
	Last       Digest    `json:"last,omitzero"`      // digest of the rows of the last revision with rows up to End; zero if unknown
	Compacted  int64     `json:"compacted"`          // etcd's scheduled compaction, read with the rows; 0 before the first one
	From       time.Time `json:"from,omitzero"`      // time of the first marker; zero without markers
	To         time.Time `json:"to,omitzero"`        // time of the last marker
	Term       uint64    `json:"term"`               // raft's
	Member     string    `json:"member"`             // etcd member ID of the writer, hexadecimal
	Session    string    `json:"session,omitempty"`  // process of the writer: random, hexadecimal
	Released   bool      `json:"released,omitzero"`  // the writer was stopped cleanly after this segment
	Opens      Position  `json:"opens,omitzero"`     // position at which a full snapshot starts another chain; zero if none
	Ends       *Ending   `json:"ends,omitempty"`     // end of the generation; nil if it continues
	Applied    uint64    `json:"applied,omitzero"`   // raft index of the small buckets, as in Source, or that of the previous segment
	Buckets    []string  `json:"buckets,omitempty"`  // names of the included small buckets
	Body       Body      `json:"body"`               // bytes after the line
	Encrypted  bool      `json:"encrypted,omitzero"` // with age
}

// Ending is the end marker of a generation, which names its successor. It is stored at the position of the next
// segment, so that no segment can follow what a restore has read.
type Ending struct {
	Successor int       `json:"successor"` // number of the next generation
	Nonce     string    `json:"nonce"`     // process that ended the generation: random, hexadecimal
	At        time.Time `json:"at"`
}

// Next returns the position of the next segment.
func (m Manifest) Next() Position {
	if m.Rows > 0 {
		return After(m.End)
	}
	return Position{Revision: m.Position.Revision, Part: m.Position.Part + 1}
}

// Start returns what the next segment continues.
func (m Manifest) Start() Start {
	return Start{Cluster: m.Cluster, Generation: m.Generation, Position: m.Next(), Before: m.After, Last: m.Last, Applied: m.Applied}
}

// maxRaw limits the records of a segment, in bytes: 8 MiB and one revision, which may delete all keys.
const maxRaw = 16 << 30

// check rejects contradictions.
func (m Manifest) check() error {
	switch {
	case m.Cluster == "" || m.Generation <= 0 || !m.Position.Valid():
		return errors.New("it lacks its cluster, generation or position")
	case m.Rows < 0 || m.RawBytes < 0 || m.RawBytes > maxRaw || m.Body.Bytes < 0 || m.Body.Bytes > maxRaw:
		return fmt.Errorf("its counts are out of range: %d rows, %d bytes", m.Rows, m.RawBytes)
	case m.Rows > 0 && (m.Released || !m.Opens.IsZero() || m.Ends != nil):
		return errors.New("a marker segment must not have rows")
	case m.Ends != nil && (m.Ends.Successor <= m.Generation || m.Ends.Nonce == ""):
		return errors.New("an end marker must name its successor")
	case m.Rows == 0 && (m.End != m.Position.Revision-1 || m.Before != m.After),
		m.Rows > 0 && (m.End < m.Position.Revision || m.Last == Digest{}):
		return fmt.Errorf("%d rows do not fit its range from %s to %d", m.Rows, m.Position, m.End)
	}
	return nil
}

// maxRecord limits a row and a bucket, in bytes. etcd's default limit of a request is 1.5 MiB.
const maxRecord = 256 << 20

// maxName limits the name of a bucket, in bytes.
const maxName = 1 << 10

// The first byte of each record.
const (
	typeRow    = 'R'
	typeMarker = 'M'
	typeBucket = 'B'
	typeHash   = 'H'
	typeEnd    = 'Z'
)

// appendNumbers starts a record with its type and numbers, which must not be negative.
func appendNumbers(b []byte, kind byte, numbers ...int64) []byte {
	b = append(b, kind)
	for _, n := range numbers {
		b = binary.AppendUvarint(b, uint64(n))
	}
	return b
}

// appendBytes appends bytes that are preceded by their length.
func appendBytes(b, content []byte) []byte {
	return append(binary.AppendUvarint(b, uint64(len(content))), content...)
}

func (r *Row) addTo(s *sequence) error {
	if len(r.Value) > maxRecord {
		return fmt.Errorf("a row of %d bytes is larger than %d", len(r.Value), maxRecord)
	}
	if err := s.chain.Add(*r); err != nil {
		return err
	}
	if s.chain.Revision() <= s.marked || len(s.buckets) > 0 {
		return errOrder
	}
	s.rows++
	return nil
}

func (r *Row) encode(b []byte) (fields, value []byte) {
	b = appendBytes(append(b, typeRow), r.Key)
	return binary.AppendUvarint(b, uint64(len(r.Value))), r.Value
}

func (r *Row) decode(from *SegmentReader) (err error) {
	if r.Key, err = from.bytes(r.Key, tombstoneKey); err != nil {
		return err
	}
	r.Value, err = from.bytes(r.Value, maxRecord)
	return err
}

// addTo requires that the marker follows all rows up to its revision. It may be above the last row's: etcd has
// revisions without rows.
func (m *Marker) addTo(s *sequence) error {
	switch {
	case m.Time.UnixMilli() <= 0:
		return fmt.Errorf("a marker has the invalid time %s", m.Time)
	case m.Revision < s.chain.Revision() || m.Revision < s.marked || len(s.buckets) > 0:
		return fmt.Errorf("a marker of revision %d is out of order", m.Revision)
	}
	s.marked, s.to = m.Revision, time.UnixMilli(m.Time.UnixMilli()).UTC()
	if s.from.IsZero() {
		s.from = s.to
	}
	return nil
}

func (m *Marker) encode(b []byte) (fields, value []byte) {
	return appendNumbers(b, typeMarker, m.Revision, m.Time.UnixMilli()), nil
}

func (m *Marker) decode(from *SegmentReader) error {
	var milliseconds int64
	err := from.numbers(&m.Revision, &milliseconds)
	m.Time = time.UnixMilli(milliseconds).UTC()
	return err
}

// addTo accepts a hash that comes late.
func (h *Hash) addTo(s *sequence) error {
	if s.hashes++; s.hashes > maxHashes || len(s.buckets) > 0 || h.Compacted < 0 || h.Compacted > h.Revision {
		return fmt.Errorf("the compaction hash of revision %d is out of order", h.Revision)
	}
	return nil
}

func (h *Hash) encode(b []byte) (fields, value []byte) {
	return appendNumbers(b, typeHash, h.Revision, h.Compacted, int64(h.Hash)), nil
}

func (h *Hash) decode(from *SegmentReader) error {
	var hash int64
	err := from.numbers(&h.Revision, &h.Compacted, &hash)
	if err == nil && hash > math.MaxUint32 {
		return fmt.Errorf("%w: a hash has more than 32 bits", ErrDamaged)
	}
	h.Hash = uint32(hash)
	return err
}

func (b *Bucket) addTo(s *sequence) error {
	if len(b.entries) > maxRecord || len(s.buckets) == maxBuckets || slices.Contains(s.buckets, b.Name) {
		return fmt.Errorf("bucket %.40q is too large, a duplicate or one too many", b.Name)
	}
	if err := b.check(); err != nil {
		return err
	}
	s.buckets = append(s.buckets, b.Name)
	return nil
}

func (b *Bucket) encode(to []byte) (fields, value []byte) {
	to = appendBytes(append(to, typeBucket), []byte(b.Name))
	to = binary.AppendUvarint(to, b.count)
	return binary.AppendUvarint(to, uint64(len(b.entries))), b.entries
}

func (b *Bucket) decode(from *SegmentReader) error {
	name, err := from.bytes(nil, maxName)
	if err != nil {
		return err
	}
	count, err := from.number()
	if err != nil {
		return err
	}
	b.Name, b.count = string(name), uint64(count)
	b.entries, err = from.bytes(nil, maxRecord)
	return err
}
