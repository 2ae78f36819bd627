package format

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"math"
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
	Compacted int64  // revision of etcd's scheduled compaction, read in the same transaction as the rows; 0 if none
	Term      uint64 // raft term
	Member    string // etcd member ID, hexadecimal
	Applied   uint64 // applied raft index when the small buckets were read; 0 if they were not read
	Session   string // ID of the writer process (random, hexadecimal)

	// The following fields are only set in a segment without rows.
	Released bool     // the writer shut down cleanly after this segment
	Opens    Position // position at which a full snapshot starts another chain; zero if none
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

// SegmentBuilder builds a compressed segment in memory. Rows must be added in order, each marker after the rows of
// its revision, and buckets at the end. A SegmentBuilder is unusable after an error and is not safe for concurrent
// use.
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

// Finish completes the segment and signs its manifest.
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

// Limits per segment.
const (
	maxBuckets = 64
	maxHashes  = 4096
)

// sequence checks the order of records and collects the values for the manifest. SegmentBuilder and SegmentReader
// share sequence, so a reader accepts every segment that the builder can create.
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

// checkManifest returns ErrDamaged if the records do not match the manifest.
func (s *sequence) checkManifest(expected Manifest) error {
	read := s.manifest()
	same := read.End == expected.End && read.Rows == expected.Rows && read.After == expected.After &&
		read.Last == expected.Last && slices.Equal(read.Buckets, expected.Buckets) &&
		read.From.Equal(expected.From) && read.To.Equal(expected.To)
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

// SegmentReader reads consecutive segments and verifies everything that does not require the previous segments. The
// content of a segment is valid only after SegmentReader has reached its end without an error. A SegmentReader is not
// safe for concurrent use.
//
// Errors about the content wrap ErrDamaged, ErrUntrusted, ErrNoIdentity or ErrNewer. Errors from the underlying
// reader are returned unchanged. After an error, every call returns the same error.
type SegmentReader struct {
	keys   *Keys
	source *bufio.Reader

	manifest Manifest
	body     *body // rest of the current segment; nil before the first one
	ended    bool  // the current segment has been read to the end
	err      error

	plain    io.ReadCloser // records of the segment; nil before the first one
	limited  *errorReader  // reads plain
	buffered *bufio.Reader // reads limited
	sequence *sequence
	count    int64

	row    Row
	marker Marker
	hash   Hash
}

// NewSegmentReader reads segments from r. Memory usage is bounded for any content.
func NewSegmentReader(r io.Reader, keys *Keys) *SegmentReader {
	return &SegmentReader{keys: keys, source: bufio.NewReaderSize(r, 64<<10)}
}

// Next advances to the next segment and returns io.EOF after the last one. Next verifies the digest of the rest of
// the current segment without decrypting it, so callers that do not read records do not need an identity.
func (r *SegmentReader) Next() (Manifest, error) {
	if r.err == nil {
		r.err = r.next()
	}
	if r.err != nil {
		return Manifest{}, r.err
	}
	return r.manifest, nil
}

func (r *SegmentReader) next() error {
	if err := r.finish(); err != nil {
		return err
	}
	line, err := ReadLine(r.source)
	if err != nil {
		return err
	}
	manifest, err := ReadManifest(line, r.keys)
	if err != nil {
		return err
	}
	r.manifest, r.body, r.ended = manifest, newBody(r.source, manifest.Body), false
	return nil
}

// ReadManifest decodes and verifies the first line of a segment.
func ReadManifest(line []byte, keys *Keys) (Manifest, error) {
	var manifest Manifest
	if err := keys.Check(line, SegmentKind, &manifest); err != nil {
		return Manifest{}, err
	}
	if err := manifest.check(); err != nil {
		return Manifest{}, fmt.Errorf("segment %s: %w", manifest.Position, Damaged(err))
	}
	return manifest, nil
}

// finish reads the rest of the current segment and verifies the digest of its body.
func (r *SegmentReader) finish() error {
	if r.body == nil {
		return nil
	}
	r.close()
	_, err := io.Copy(io.Discard, r.body)
	r.body = nil
	return r.withPosition(err)
}

// Record returns the next record, which is valid until the next call. At the end of the segment, Record verifies
// everything against the manifest and returns io.EOF.
func (r *SegmentReader) Record() (Record, error) {
	switch {
	case r.err != nil:
		return nil, r.err
	case r.body == nil || r.ended:
		return nil, io.EOF
	}
	record, err := r.record()
	if Ended(err) {
		r.ended = true
		return nil, io.EOF
	}
	r.err = r.withPosition(err)
	return record, r.err
}

// record returns the next record, or io.EOF after the last one.
func (r *SegmentReader) record() (Record, error) {
	if r.plain == nil {
		if err := r.open(); err != nil {
			return nil, err
		}
	}
	kind, err := r.buffered.ReadByte()
	if err != nil {
		return nil, endError(err)
	}
	if kind == typeEnd {
		return nil, r.end()
	}
	r.count++
	record, err := r.recordOf(kind)
	if err != nil {
		return nil, err
	}
	if err := record.decode(r); err != nil {
		return nil, err
	}
	if err := record.addTo(r.sequence); err != nil {
		return nil, Damaged(err)
	}
	return record, nil
}

func (r *SegmentReader) open() (err error) {
	if r.plain, err = r.keys.Open(r.body, r.manifest.Encrypted); err != nil {
		return err
	}
	r.limited = &errorReader{Reader: r.plain, limit: r.manifest.RawBytes}
	r.buffered = bufio.NewReaderSize(r.limited, 32<<10)
	start := r.manifest
	if start.Rows > 0 {
		start.Last = Digest{} // computed from this segment's rows
	}
	r.sequence, r.count = newSequence(start), 0
	return nil
}

func (r *SegmentReader) close() {
	if r.plain != nil {
		_ = r.plain.Close()
		r.plain = nil
	}
}

func (r *SegmentReader) withPosition(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("segment %s: %w", r.manifest.Position, err)
}

// recordOf returns a record of the given type to decode into. All records except buckets are reused to avoid
// allocations.
func (r *SegmentReader) recordOf(kind byte) (Record, error) {
	switch kind {
	case typeRow:
		return &r.row, nil
	case typeMarker:
		return &r.marker, nil
	case typeHash:
		return &r.hash, nil
	case typeBucket:
		return &Bucket{}, nil
	default:
		return nil, fmt.Errorf("%w: unknown record type %#x", ErrDamaged, kind)
	}
}

// end reads the end record. If the count in the end record, the manifest and the digest of the body match the
// records, end returns io.EOF, and otherwise ErrDamaged or a read error.
func (r *SegmentReader) end() error {
	count, err := r.number()
	if err != nil {
		return err
	}
	if count != r.count {
		return fmt.Errorf("%w: found %d records, expected %d", ErrDamaged, r.count, count)
	}
	if _, err := r.buffered.ReadByte(); !Ended(err) {
		return errors.Join(err, fmt.Errorf("%w: unexpected data after the last record", ErrDamaged))
	}
	if missing := r.manifest.RawBytes - r.limited.size; missing != 0 {
		return fmt.Errorf("%w: %d bytes of records are missing", ErrDamaged, missing)
	}
	if err := r.sequence.checkManifest(r.manifest); err != nil {
		return err
	}
	r.close()
	return r.body.check()
}

func (r *SegmentReader) numbers(into ...*int64) (err error) {
	for _, number := range into {
		if *number, err = r.number(); err != nil {
			return err
		}
	}
	return nil
}

func (r *SegmentReader) number() (int64, error) {
	n, err := binary.ReadUvarint(r.buffered)
	switch {
	case err != nil && r.limited.failed != nil:
		return 0, err
	case err != nil: // the number is truncated or exceeds 64 bits
		return 0, Damaged(err)
	case n > math.MaxInt64:
		return 0, fmt.Errorf("%w: number exceeds 63 bits", ErrDamaged)
	}
	return int64(n), nil
}

// bytes reads a length-prefixed byte string of at most limit bytes. If room is large enough, bytes reuses its memory.
func (r *SegmentReader) bytes(room []byte, limit int64) ([]byte, error) {
	length, err := r.number()
	if err != nil {
		return nil, err
	}
	if length > limit {
		return nil, fmt.Errorf("%w: field of %d bytes exceeds the limit of %d bytes", ErrDamaged, length, limit)
	}
	room = room[:0]
	for int64(len(room)) < length { // allocate gradually, because the length may be forged
		have := len(room)
		room = append(room, make([]byte, min(length-int64(have), 1<<20))...)
		if _, err := io.ReadFull(r.buffered, room[have:]); err != nil {
			return nil, endError(err)
		}
	}
	return room, nil
}

func endError(err error) error {
	if Ended(err) || err == io.ErrUnexpectedEOF { //nolint:errorlint // a wrapped error may be a lost connection; see Ended
		return fmt.Errorf("%w: records are truncated", ErrDamaged)
	}
	return err
}

// Body is the size and digest of bytes that a statement describes.
type Body struct {
	Bytes  int64  `json:"bytes"`
	SHA256 Digest `json:"sha256"`
}

// Reader returns a reader of exactly the described bytes in source. The reader returns io.EOF only if all bytes have
// been read and match the digest. Otherwise, the error is ErrDamaged or an error from source.
func (b Body) Reader(source io.Reader) io.Reader { return newBody(source, b) }

type body struct {
	source   io.Reader
	left     int64
	hash     hash.Hash
	expected Digest
}

func newBody(source io.Reader, expected Body) *body {
	return &body{source: source, left: expected.Bytes, hash: sha256.New(), expected: expected.SHA256}
}

func (b *body) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, b.end()
	}
	n, err := b.source.Read(p[:min(int64(len(p)), b.left)])
	b.hash.Write(p[:n])
	b.left -= int64(n)
	switch {
	case err == nil:
		return n, nil
	case !Ended(err):
		return n, err
	case b.left > 0:
		return n, fmt.Errorf("%w: the last %d bytes are missing", ErrDamaged, b.left)
	}
	return n, b.end()
}

func (b *body) end() error {
	if Digest(b.hash.Sum(nil)) != b.expected {
		return fmt.Errorf("%w: SHA-256 does not match the manifest", ErrDamaged)
	}
	return io.EOF
}

// check returns io.EOF if all bytes have been read and match the digest, and ErrDamaged otherwise.
func (b *body) check() error {
	if b.left > 0 {
		return fmt.Errorf("%w: %d bytes left after the last record", ErrDamaged, b.left)
	}
	return b.end()
}
