package format

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"
	"time"
)

// Start describes what a segment continues: a full snapshot or the previous segment.
type Start struct {
	Cluster    string
	Generation int
	Position   Position
	Before     Digest // the chain's digest there
	Last       Digest // digest of the rows of the last revision with rows; zero if unknown
	Applied    uint64 // raft index up to which the small buckets are known; 0 if unknown
}

// Source describes the origin of a segment's records.
type Source struct {
	Compacted int64  // etcd's scheduled compaction, read in the transaction that the rows come from; 0 if there was none
	Term      uint64 // raft's
	Member    string // etcd's member id, hexadecimal
	Applied   uint64 // raft index applied when the small buckets were read; 0 if they were not read
	Session   string // of the process

	// Only for a segment without rows:
	Released bool     // the last segment of a writer that stops in order
	Opens    Position // position at which another chain continues
	Ends     *Ending  // of the generation
}

// Object is a segment as it is stored.
type Object struct {
	Manifest
	Line []byte       // the signed line, with its newline
	data *chunkBuffer // what follows it
}

// Size returns the length in bytes.
func (o Object) Size() int64 { return int64(len(o.Line)) + o.Body.Bytes }

// Reader returns a new reader of the object.
func (o Object) Reader() io.Reader { return io.MultiReader(bytes.NewReader(o.Line), o.data.reader()) }

// SegmentBuilder builds a compressed segment in memory. Rows come in order, markers after the rows of their revision, buckets last.
// After an error it is unusable. It is not safe for concurrent use.
type SegmentBuilder struct {
	keys     *Keys
	sequence *sequence

	data    *chunkBuffer
	sealed  io.WriteCloser
	records int64
	raw     int64
	scratch []byte
}

// NewSegmentBuilder starts a segment.
func NewSegmentBuilder(keys *Keys, start Start) (*SegmentBuilder, error) {
	if !start.Position.Valid() {
		return nil, fmt.Errorf("no segment can start at %s: a full snapshot is needed", start.Position)
	}
	b := &SegmentBuilder{keys: keys, data: newChunkBuffer(), sequence: newSequence(Manifest{
		Heading: Heading{Format: Format, Kind: SegmentKind},
		Cluster: start.Cluster, Generation: start.Generation, Position: start.Position,
		Before: start.Before, Last: start.Last, Applied: start.Applied, Encrypted: keys.Encrypts(),
	})}
	sealed, err := keys.Seal(b.data)
	b.sealed = sealed
	return b, err
}

// RawBytes returns the size of the records so far, before compression.
func (b *SegmentBuilder) RawBytes() int64 { return b.raw }

// Rows returns the number of rows.
func (b *SegmentBuilder) Rows() int64 { return b.sequence.rows }

// End returns the revision of the last row, or the one before the segment.
func (b *SegmentBuilder) End() int64 { return b.sequence.chain.Revision() }

// Row adds a row. It does not retain it.
func (b *SegmentBuilder) Row(row Row) error {
	if err := b.sequence.row(row); err != nil {
		return err
	}
	b.begin(typeRow)
	b.bytes(row.Key)
	b.number(int64(len(row.Value)))
	return b.write(row.Value)
}

// Marker adds a marker after all rows up to its revision. It may be above the last row's: etcd has revisions without rows.
func (b *SegmentBuilder) Marker(marker Marker) error {
	milliseconds := marker.Time.UnixMilli()
	if milliseconds <= 0 {
		return fmt.Errorf("a marker cannot have the time %s", marker.Time)
	}
	marker.Time = time.UnixMilli(milliseconds).UTC()
	if err := b.sequence.marker(marker); err != nil {
		return err
	}
	b.begin(typeMarker)
	b.number(marker.Revision)
	b.number(milliseconds)
	return b.write(nil)
}

// CompactionHash adds the hash that etcd computed when it compacted. It may come late.
func (b *SegmentBuilder) CompactionHash(hash CompactionHash) error {
	if hash.Revision < 0 || hash.Compacted < 0 {
		return errors.New("a compaction's hash has a negative revision")
	}
	if err := b.sequence.hash(hash); err != nil {
		return err
	}
	b.begin(typeHash)
	b.number(hash.Revision)
	b.number(hash.Compacted)
	b.number(int64(hash.Hash))
	return b.write(nil)
}

// Bucket adds the content of a small bucket at the end of the segment.
func (b *SegmentBuilder) Bucket(bucket *Bucket) error {
	if err := b.sequence.bucket(bucket); err != nil {
		return err
	}
	b.begin(typeBucket)
	b.bytes([]byte(bucket.Name))
	b.number(int64(bucket.count))
	b.number(int64(len(bucket.entries)))
	return b.write(bucket.entries)
}

// Finish completes the segment.
func (b *SegmentBuilder) Finish(from Source) (Object, error) {
	records := b.records
	b.begin(typeEnd)
	b.number(records)
	if err := errors.Join(b.write(nil), b.sealed.Close()); err != nil {
		return Object{}, err
	}
	m := b.sequence.manifest()
	m.Compacted, m.Term, m.Member, m.RawBytes = from.Compacted, from.Term, from.Member, b.raw
	m.Session, m.Released, m.Opens, m.Ends = from.Session, from.Released, from.Opens, from.Ends
	m.Body = b.data.body()
	m.Applied = cmp.Or(from.Applied, m.Applied)
	if err := m.check(); err != nil {
		return Object{}, err
	}
	line, err := b.keys.Sign(m)
	return Object{Manifest: m, Line: line, data: b.data}, err
}

func (b *SegmentBuilder) begin(kind byte) {
	b.records++
	b.scratch = append(b.scratch[:0], kind)
}

// number appends a non-negative number.
func (b *SegmentBuilder) number(n int64) { b.scratch = binary.AppendUvarint(b.scratch, uint64(n)) }

func (b *SegmentBuilder) bytes(p []byte) {
	b.number(int64(len(p)))
	b.scratch = append(b.scratch, p...)
}

// write completes a record with a large value.
func (b *SegmentBuilder) write(p []byte) error {
	b.raw += int64(len(b.scratch) + len(p))
	if _, err := b.sealed.Write(b.scratch); err != nil {
		return err
	}
	_, err := b.sealed.Write(p)
	return err
}

// Limits per segment: etcd has a dozen buckets, and does not compact twice within milliseconds.
const (
	maxBuckets = 64
	maxHashes  = 4096
)

// sequence checks the order of records and collects the facts for the manifest. SegmentBuilder and SegmentReader both use it, so
// everything that is written can be read.
type sequence struct {
	chain   *Chain
	start   Manifest
	rows    int64
	marked  int64 // revision of the last marker
	from    time.Time
	to      time.Time
	hashes  int
	buckets []string
}

func newSequence(start Manifest) *sequence {
	return &sequence{chain: Continue(start.Before, start.Position), start: start}
}

func (s *sequence) row(row Row) error {
	if len(row.Value) > maxRecord {
		return fmt.Errorf("a row of %d bytes is larger than %d", len(row.Value), maxRecord)
	}
	if err := s.chain.Add(row); err != nil {
		return err
	}
	if s.chain.Revision() <= s.marked || len(s.buckets) > 0 {
		return errOrder
	}
	s.rows++
	return nil
}

func (s *sequence) marker(marker Marker) error {
	if marker.Revision < s.chain.Revision() || marker.Revision < s.marked || len(s.buckets) > 0 {
		return fmt.Errorf("a marker of revision %d is out of order", marker.Revision)
	}
	if s.from.IsZero() {
		s.from = marker.Time
	}
	s.marked, s.to = marker.Revision, marker.Time
	return nil
}

func (s *sequence) hash(hash CompactionHash) error {
	if s.hashes++; s.hashes > maxHashes || len(s.buckets) > 0 || hash.Compacted > hash.Revision {
		return fmt.Errorf("a compaction's hash of revision %d is out of order", hash.Revision)
	}
	return nil
}

func (s *sequence) bucket(bucket *Bucket) error {
	if len(bucket.entries) > maxRecord || len(s.buckets) == maxBuckets || slices.Contains(s.buckets, bucket.Name) {
		return fmt.Errorf("bucket %.40q is one too many or too large", bucket.Name)
	}
	if err := bucket.check(); err != nil {
		return err
	}
	s.buckets = append(s.buckets, bucket.Name)
	return nil
}

// manifest returns the facts about the records.
func (s *sequence) manifest() Manifest {
	m := s.start
	m.Rows, m.Buckets, m.From, m.To = s.rows, s.buckets, s.from, s.to
	m.End, m.After = m.Position.Revision-1, m.Before
	if s.rows > 0 {
		m.End = s.chain.Revision()
		m.After, m.Last = s.chain.End()
	}
	return m
}

// checkManifest compares the records with the manifest.
func (s *sequence) checkManifest(promised Manifest) error {
	read := s.manifest()
	same := read.End == promised.End && read.Rows == promised.Rows && read.After == promised.After &&
		read.Last == promised.Last && slices.Equal(read.Buckets, promised.Buckets) &&
		read.From.Equal(promised.From) && read.To.Equal(promised.To)
	if !same {
		return fmt.Errorf("%w: its records do not match its manifest", ErrDamaged)
	}
	return nil
}

// Sizes of chunks in bytes. They grow with the content, so a small segment takes little memory.
const (
	minChunk = 4 << 10
	maxChunk = 256 << 10
)

// chunkBuffer stores bytes in chunks, so that it never copies them to grow: a segment of 8 MiB takes no more than that.
type chunkBuffer struct {
	all  [][]byte
	size int64
	hash hash.Hash
}

func newChunkBuffer() *chunkBuffer { return &chunkBuffer{hash: sha256.New()} }

func (p *chunkBuffer) Write(b []byte) (int, error) {
	p.hash.Write(b)
	p.size += int64(len(b))
	for rest := b; len(rest) > 0; {
		last := len(p.all) - 1
		if last < 0 || len(p.all[last]) == cap(p.all[last]) {
			p.all = append(p.all, make([]byte, 0, min(max(p.size, minChunk), maxChunk)))
			last++
		}
		n := min(len(rest), cap(p.all[last])-len(p.all[last]))
		p.all[last] = append(p.all[last], rest[:n]...)
		rest = rest[n:]
	}
	return len(b), nil
}

// body returns the manifest's description of the bytes.
func (p *chunkBuffer) body() Body { return Body{Bytes: p.size, SHA256: Digest(p.hash.Sum(nil))} }

func (p *chunkBuffer) reader() io.Reader {
	var readers []io.Reader
	for _, piece := range p.all {
		readers = append(readers, bytes.NewReader(piece))
	}
	return io.MultiReader(readers...)
}
