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

// A Record is one entry in a segment: a *[Row], *[Marker], *[Hash] or *[Bucket].
type Record interface {
	// addTo checks that the record may follow the previous ones, and counts it.
	addTo(*sequence) error
	// encode appends the fields of the record to b. If a large value follows the fields, encode returns it as value
	// instead of copying it.
	encode(b []byte) (fields, value []byte)
	// decode reads the record from the reader, which has already consumed the record type.
	decode(*SegmentReader) error
}

// Row is a row in etcd's key bucket. The key of a row is 17 bytes long: the revision (8 bytes, big endian), '_', and
// the number of the change within the revision (8 bytes). If the row deletes a key, a 't' is appended. Values may be
// empty.
type Row struct {
	Key, Value []byte
}

// Marker records that etcd was at a revision at a certain time. A marker follows all rows up to its revision.
type Marker struct {
	Revision int64
	Time     time.Time // millisecond precision
}

// Hash is etcd's hash of the rows up to a revision, as returned by HashKV or as computed during a compaction.
type Hash struct {
	Revision  int64  `json:"revision"` // last hashed revision
	Compacted int64  `json:"compact"`  // revision at which the database was compacted; 0 if it never was
	Hash      uint32 `json:"hash"`
}

const (
	rowKey       = 17
	tombstoneKey = rowKey + 1
)

// Revision returns the revision of the row, or an error if the key is not a row key.
func (r Row) Revision() (int64, error) {
	plain := len(r.Key) == rowKey && r.Key[8] == '_'
	tombstone := len(r.Key) == tombstoneKey && r.Key[8] == '_' && r.Key[rowKey] == 't'
	if !plain && !tombstone || r.Key[0] >= 0x80 {
		return 0, fmt.Errorf("invalid row key %.18x: not an etcd revision", r.Key)
	}
	return int64(binary.BigEndian.Uint64(r.Key)), nil
}

// Tombstone reports whether the row deletes a key.
func (r Row) Tombstone() bool { return len(r.Key) == tombstoneKey }

// Bucket is the content of a small etcd bucket such as lease or authUsers. The content is kept in a single
// allocation, because it may be large.
type Bucket struct {
	Name string

	count   uint64
	entries []byte // for each entry: key length, key, value length, value (lengths are uvarints)
}

// NewBucket returns an empty bucket with the given name.
func NewBucket(name string) *Bucket { return &Bucket{Name: name} }

// Add adds an entry. Keys must be added in order.
func (b *Bucket) Add(key, value []byte) {
	b.count++
	b.entries = appendBytes(appendBytes(b.entries, key), value)
}

// Len returns the number of entries.
func (b *Bucket) Len() int { return int(b.count) }

// Digest returns the SHA-256 of the content.
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

var errBucket = errors.New("malformed bucket entries")

// cut splits off a length-prefixed byte string.
func cut(b []byte) (first, rest []byte, err error) {
	length, n := binary.Uvarint(b)
	if n <= 0 || length > uint64(len(b)-n) {
		return nil, nil, errBucket
	}
	return b[n : n+int(length) : n+int(length)], b[n+int(length):], nil
}

// check validates a decoded bucket.
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

// maxPart is the maximum number of segments without rows at one revision. At one segment per second, the limit is
// reached after 31 years.
const maxPart = 999_999_999

// Position is the start of a segment and determines its name. Positions increase over time.
type Position struct {
	Revision int64 `json:"revision"` // first revision that earlier segments do not cover
	Part     int   `json:"part"`     // number of earlier segments without rows at that revision
}

// String formats the position for object names. Formatted positions sort in the same order as positions.
func (p Position) String() string { return fmt.Sprintf("%019d.%09d", p.Revision, p.Part) }

// ParsePosition parses the output of String.
func ParsePosition(s string) (Position, error) {
	revision, part, _ := strings.Cut(s, ".")
	first, err := strconv.ParseUint(revision, 10, 63)
	count, errPart := strconv.ParseUint(part, 10, 31)
	p := Position{int64(first), int(count)}
	if err != nil || errPart != nil || len(revision) != 19 || len(part) != 9 || !p.Valid() {
		return Position{}, fmt.Errorf("invalid position %q", s)
	}
	return p, nil
}

// Valid reports whether a segment can start at the position.
func (p Position) Valid() bool { return p.Revision > 0 && p.Part >= 0 && p.Part <= maxPart }

// Compare returns -1 if p is before other, 0 if they are equal, and +1 if p is after other.
func (p Position) Compare(other Position) int {
	return cmp.Or(cmp.Compare(p.Revision, other.Revision), cmp.Compare(p.Part, other.Part))
}

// IsZero reports whether p is unset.
func (p Position) IsZero() bool { return p == Position{} }

// After returns the first position after a revision.
func After(revision int64) Position { return Position{Revision: revision + 1} }

// Digest is a SHA-256 digest that is encoded in JSON as lowercase hexadecimal.
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

// Seed returns the initial digest of a chain that starts with the full snapshot of the given revision.
func Seed(cluster string, generation int, revision int64) Digest {
	return sha256.Sum256(fmt.Appendf(nil, "etcd-wrapper chain\n%s\n%d\n%d\n", cluster, generation, revision))
}

// Chain computes the digest over all rows since a full snapshot. The digest does not depend on segment boundaries:
//
//	C(r) = SHA-256(C(before r) || r as 8 bytes, big endian || SHA-256(rows of r))
//
// A row is hashed as key length, key, value length and value, with lengths as uvarints. Revisions without rows do not
// change the digest. A Chain is not safe for concurrent use.
type Chain struct {
	digest   Digest // digest of all revisions before the current one
	last     Digest // digest of the rows of the previous revision
	revision int64  // current revision, or the revision before the first row
	open     bool   // the current revision has rows that digest does not include yet
	rows     hash.Hash
	key      []byte // key of the previous row
	scratch  []byte
}

// Continue returns a chain whose next row is at or after position. before is the digest of all earlier rows.
func Continue(before Digest, position Position) *Chain {
	return &Chain{digest: before, revision: position.Revision - 1, rows: sha256.New()}
}

var errOrder = errors.New("rows are out of order")

// Add adds the next row. If the row is out of order, Add returns an error and leaves the chain unchanged.
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

// Revision returns the revision of the last row, or the revision before the first row.
func (c *Chain) Revision() int64 { return c.revision }

// End completes the last revision and returns the digest over all rows and the digest of the last revision alone. If
// there are no rows, the second digest is zero. After End, no rows of that revision may be added.
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
	Cluster    string    `json:"cluster"`            // cluster ID
	Generation int       `json:"generation"`         // number of the generation
	Position   Position  `json:"position"`           // start of the segment
	End        int64     `json:"end"`                // last revision that the segment covers; Position.Revision-1 if there are no rows
	Rows       int64     `json:"rows"`               // number of rows
	RawBytes   int64     `json:"raw_bytes"`          // uncompressed size of the records
	Before     Digest    `json:"before"`             // digest of the chain at Position
	After      Digest    `json:"after"`              // digest of the chain after End
	Last       Digest    `json:"last,omitzero"`      // digest of the rows of the last revision up to End that has rows; zero if unknown
	Compacted  int64     `json:"compacted"`          // revision of etcd's scheduled compaction when the rows were read; 0 if none
	From       time.Time `json:"from,omitzero"`      // time of the first marker; zero if there are no markers
	To         time.Time `json:"to,omitzero"`        // time of the last marker; zero if there are no markers
	Term       uint64    `json:"term"`               // raft term
	Member     string    `json:"member"`             // etcd member ID of the writer in hexadecimal
	Session    string    `json:"session,omitempty"`  // ID of the writer process (random, hexadecimal)
	Released   bool      `json:"released,omitzero"`  // the writer shut down cleanly after this segment
	Opens      Position  `json:"opens,omitzero"`     // position at which a full snapshot starts another chain; zero if none
	Ends       *Ending   `json:"ends,omitempty"`     // end of the generation; nil if the generation continues
	Applied    uint64    `json:"applied,omitzero"`   // raft index of the last captured small buckets; they may be in an earlier segment
	Buckets    []string  `json:"buckets,omitempty"`  // names of the included small buckets
	Body       Body      `json:"body"`               // size and digest of the bytes after the line
	Encrypted  bool      `json:"encrypted,omitzero"` // the bytes after the line are encrypted with age
}

// Ending is the end marker of a generation and names the successor. The marker occupies the position of the next
// segment, so that no writer can add a segment after a restore has read the generation.
type Ending struct {
	Successor int       `json:"successor"` // number of the next generation
	Nonce     string    `json:"nonce"`     // ID of the process that ended the generation (random, hexadecimal)
	At        time.Time `json:"at"`
}

// Next returns the position of the next segment.
func (m Manifest) Next() Position {
	if m.Rows > 0 {
		return After(m.End)
	}
	return Position{Revision: m.Position.Revision, Part: m.Position.Part + 1}
}

// Start returns the start of the next segment.
func (m Manifest) Start() Start {
	return Start{Cluster: m.Cluster, Generation: m.Generation, Position: m.Next(), Before: m.After, Last: m.Last, Applied: m.Applied}
}

// maxRaw is the maximum size of a segment's records in bytes. A segment contains at most 8 MiB plus one revision,
// which may be large because it may delete all keys.
const maxRaw = 16 << 30

// check returns an error if fields are invalid or inconsistent.
func (m Manifest) check() error {
	switch {
	case m.Cluster == "" || m.Generation <= 0 || !m.Position.Valid():
		return errors.New("cluster, generation or position is missing or invalid")
	case m.Rows < 0 || m.RawBytes < 0 || m.RawBytes > maxRaw || m.Body.Bytes < 0 || m.Body.Bytes > maxRaw:
		return fmt.Errorf("counts out of range: %d rows, %d bytes, %d stored bytes", m.Rows, m.RawBytes, m.Body.Bytes)
	case m.Rows > 0 && (m.Released || !m.Opens.IsZero() || m.Ends != nil):
		return errors.New(`a segment with the field "released", "opens" or "ends" must not contain rows`)
	case m.Ends != nil && (m.Ends.Successor <= m.Generation || m.Ends.Nonce == ""):
		return errors.New("the end marker must have a nonce and a successor with a higher generation number")
	case m.Rows == 0 && (m.End != m.Position.Revision-1 || m.Before != m.After),
		m.Rows > 0 && (m.End < m.Position.Revision || m.Last == Digest{}):
		return fmt.Errorf("row count %d does not match the digests or the range from position %s to revision %d", m.Rows, m.Position, m.End)
	}
	return nil
}

// maxRecord is the maximum size of a row or bucket in bytes. By default, etcd limits requests to 1.5 MiB.
const maxRecord = 256 << 20

// maxName is the maximum length of a bucket name in bytes.
const maxName = 1 << 10

// Record types, stored in the first byte of a record.
const (
	typeRow    = 'R'
	typeMarker = 'M'
	typeBucket = 'B'
	typeHash   = 'H'
	typeEnd    = 'Z'
)

// appendNumbers appends the type and the numbers of a record. The numbers must not be negative.
func appendNumbers(b []byte, kind byte, numbers ...int64) []byte {
	b = append(b, kind)
	for _, n := range numbers {
		b = binary.AppendUvarint(b, uint64(n))
	}
	return b
}

// appendBytes appends a length-prefixed byte string.
func appendBytes(b, content []byte) []byte {
	return append(binary.AppendUvarint(b, uint64(len(content))), content...)
}

func (r *Row) addTo(s *sequence) error {
	if len(r.Value) > maxRecord {
		return fmt.Errorf("row of %d bytes exceeds the limit of %d bytes", len(r.Value), maxRecord)
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

// addTo requires that the marker follows all rows up to its revision. A marker may be later than the last row,
// because etcd has revisions without rows.
func (m *Marker) addTo(s *sequence) error {
	switch {
	case m.Time.UnixMilli() <= 0:
		return fmt.Errorf("invalid marker time %s (must be after 1970-01-01)", m.Time)
	case m.Revision < s.chain.Revision() || m.Revision < s.marked || len(s.buckets) > 0:
		return fmt.Errorf("marker at revision %d is out of order", m.Revision)
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

// addTo accepts hashes out of order, because a hash may arrive after rows of newer revisions.
func (h *Hash) addTo(s *sequence) error {
	if s.hashes++; s.hashes > maxHashes || len(s.buckets) > 0 || h.Compacted < 0 || h.Compacted > h.Revision {
		return fmt.Errorf("hash record %d (at most %d) must precede all buckets and have a compaction revision (%d) from 0 to %d", s.hashes, maxHashes, h.Compacted, h.Revision)
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
		return fmt.Errorf("%w: hash exceeds 32 bits", ErrDamaged)
	}
	h.Hash = uint32(hash)
	return err
}

func (b *Bucket) addTo(s *sequence) error {
	if len(b.entries) > maxRecord || len(s.buckets) == maxBuckets || slices.Contains(s.buckets, b.Name) {
		return fmt.Errorf("invalid bucket %.40q (%d bytes): must be unique, at most %d bytes long and one of at most %d buckets", b.Name, len(b.entries), maxRecord, maxBuckets)
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
