package format

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
)

// Start is the point from which a segment continues: a full snapshot or the previous segment.
type Start struct {
	Cluster    string
	Generation int
	Position   Position
	Before     Digest // digest of the chain at the position
	Last       Digest // digest of the rows of the last revision with rows; zero if unknown
	Applied    uint64 // raft index of the last captured small buckets; 0 if unknown
}

// Source describes the origin of a segment's records.
type Source struct {
	Compacted int64  // etcd's scheduled compaction, read in the same transaction as the rows; 0 if there was none
	Term      uint64 // raft term
	Member    string // etcd member ID, hexadecimal
	Applied   uint64 // raft index applied when the small buckets were read; 0 if they were not read
	Session   string // ID of the writer process

	// Fields of a segment without rows.
	Released bool     // the writer was stopped cleanly after this segment
	Opens    Position // position at which another chain continues; zero if none
	Ends     *Ending  // end of the generation; nil if the generation continues
}

// Object is an encoded segment.
type Object struct {
	Manifest
	Line []byte      // signed line with its newline
	data chunkBuffer // data after the line
}

// Size returns the size of the object in bytes.
func (o Object) Size() int64 { return int64(len(o.Line)) + o.Body.Bytes }

// Reader returns a new reader of the object.
func (o Object) Reader() io.Reader {
	return io.MultiReader(bytes.NewReader(o.Line), o.data.reader())
}

// SegmentBuilder builds a compressed segment in memory. Rows must be added in order, markers after the rows of their
// revision, and buckets last. A SegmentBuilder is unusable after an error and is not safe for concurrent use.
type SegmentBuilder struct {
	keys     *Keys
	sequence *sequence

	data    chunkBuffer
	sealed  io.WriteCloser
	records int64
	raw     int64
	scratch []byte
}

// NewSegmentBuilder starts a segment.
func NewSegmentBuilder(keys *Keys, start Start) (*SegmentBuilder, error) {
	if !start.Position.Valid() {
		return nil, fmt.Errorf("cannot start a segment at %s: a full snapshot is required", start.Position)
	}
	b := &SegmentBuilder{keys: keys, sequence: newSequence(Manifest{
		Heading: Heading{Format: Format, Kind: SegmentKind},
		Cluster: start.Cluster, Generation: start.Generation, Position: start.Position,
		Before: start.Before, Last: start.Last, Applied: start.Applied, Encrypted: keys.Encrypts(),
	})}
	sealed, err := keys.Seal(&b.data)
	b.sealed = sealed
	return b, err
}

// RawBytes returns the uncompressed size of the records added so far.
func (b *SegmentBuilder) RawBytes() int64 { return b.raw }

// Rows returns the number of rows.
func (b *SegmentBuilder) Rows() int64 { return b.sequence.rows }

// End returns the revision of the last row, or the revision before the segment if there are no rows.
func (b *SegmentBuilder) End() int64 { return b.sequence.chain.Revision() }

// Add adds a record without retaining it.
func (b *SegmentBuilder) Add(record Record) error {
	if err := record.addTo(b.sequence); err != nil {
		return err
	}
	b.records++
	return b.write(record.encode(b.scratch[:0]))
}

// Finish completes the segment.
func (b *SegmentBuilder) Finish(from Source) (Object, error) {
	if err := errors.Join(b.write(appendNumbers(b.scratch[:0], typeEnd, b.records), nil), b.sealed.Close()); err != nil {
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

// write writes the fields of a record, followed by its large value.
func (b *SegmentBuilder) write(fields, value []byte) error {
	b.scratch = fields
	b.raw += int64(len(fields) + len(value))
	if _, err := b.sealed.Write(fields); err != nil {
		return err
	}
	_, err := b.sealed.Write(value)
	return err
}

// Limits per segment. etcd has a dozen buckets and never compacts twice within milliseconds.
const (
	maxBuckets = 64
	maxHashes  = 4096
)

// sequence checks the order of records and collects the values for the manifest. SegmentBuilder and SegmentReader
// share sequence, so anything that can be written can be read.
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

// manifest returns a manifest that describes the records.
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
		return fmt.Errorf("%w: records do not match the manifest", ErrDamaged)
	}
	return nil
}

// chunkBuffer stores the written blocks. A chunkBuffer grows without copying its content, so an 8 MiB segment takes
// only 8 MiB of memory.
type chunkBuffer [][]byte

func (c *chunkBuffer) Write(block []byte) (int, error) {
	*c = append(*c, bytes.Clone(block))
	return len(block), nil
}

// body returns the size and digest of the bytes.
func (c *chunkBuffer) body() (body Body) {
	hash := sha256.New()
	for _, block := range *c {
		body.Bytes += int64(len(block))
		hash.Write(block)
	}
	body.SHA256 = Digest(hash.Sum(nil))
	return body
}

func (c *chunkBuffer) reader() io.Reader {
	var blocks []io.Reader
	for _, block := range *c {
		blocks = append(blocks, bytes.NewReader(block))
	}
	return io.MultiReader(blocks...)
}
