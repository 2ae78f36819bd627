package format

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"math"
)

// SegmentReader reads consecutive segments and verifies everything that does not require the previous segments. The
// content of a segment is valid only after its end was reached without an error. A SegmentReader is not safe for
// concurrent use.
//
// Errors about the content wrap ErrDamaged, ErrUntrusted, ErrNoIdentity or ErrNewer. Errors from the underlying
// reader are returned unchanged. After an error, every call returns the same error.
type SegmentReader struct {
	keys   *Keys
	source *bufio.Reader

	manifest Manifest
	body     *body // rest of the current segment; nil before the first one
	ended    bool  // the current segment was read to the end
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

// NewSegmentReader reads segments from r. Memory use is bounded for any content.
func NewSegmentReader(r io.Reader, keys *Keys) *SegmentReader {
	return &SegmentReader{keys: keys, source: bufio.NewReaderSize(r, 64<<10)}
}

// Next advances to the next segment and returns io.EOF after the last one. Next verifies the digest of the rest of
// the current segment without decrypting it, so callers that need no records need no identity.
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

// finish reads the rest of the current segment.
func (r *SegmentReader) finish() error {
	if r.body == nil {
		return nil
	}
	r.close()
	_, err := io.Copy(io.Discard, r.body)
	r.body = nil
	return r.named(err)
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
	r.err = r.named(err)
	return record, r.err
}

// record returns io.EOF after the last record.
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
		start.Last = Digest{} // computed from the records of this segment
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

func (r *SegmentReader) named(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("segment %s: %w", r.manifest.Position, err)
}

// recordOf returns the record to decode into. All records except buckets are reused.
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

// end checks the totals and returns io.EOF if they are correct.
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
	case err != nil: // too many or too few bytes
		return 0, Damaged(err)
	case n > math.MaxInt64:
		return 0, fmt.Errorf("%w: number out of range", ErrDamaged)
	}
	return int64(n), nil
}

// bytes reads a length and that many bytes, reusing room if it is large enough.
func (r *SegmentReader) bytes(room []byte, most int64) ([]byte, error) {
	length, err := r.number()
	if err != nil {
		return nil, err
	}
	if length > most {
		return nil, fmt.Errorf("%w: field of %d bytes exceeds the limit of %d bytes", ErrDamaged, length, most)
	}
	room = room[:0]
	for int64(len(room)) < length { // grow gradually, because the length may be forged
		have := len(room)
		room = append(room, make([]byte, min(length-int64(have), 1<<20))...)
		if _, err := io.ReadFull(r.buffered, room[have:]); err != nil {
			return nil, endError(err)
		}
	}
	return room, nil
}

func endError(err error) error {
	if Ended(err) || err == io.ErrUnexpectedEOF { //nolint:errorlint // io.ReadFull's own, as above
		return fmt.Errorf("%w: records are truncated", ErrDamaged)
	}
	return err
}

// Body is the size and digest of bytes that a statement describes.
type Body struct {
	Bytes  int64  `json:"bytes"`
	SHA256 Digest `json:"sha256"`
}

// Reader reads exactly the described bytes from source. Reader returns io.EOF only if all bytes were read and match
// the digest; otherwise ErrDamaged or an error from source.
func (b Body) Reader(source io.Reader) io.Reader { return newBody(source, b) }

type body struct {
	source   io.Reader
	left     int64
	hash     hash.Hash
	promised Digest
}

func newBody(source io.Reader, promised Body) *body {
	return &body{source: source, left: promised.Bytes, hash: sha256.New(), promised: promised.SHA256}
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
	if Digest(b.hash.Sum(nil)) != b.promised {
		return fmt.Errorf("%w: SHA-256 does not match the manifest", ErrDamaged)
	}
	return io.EOF
}

// check returns io.EOF if all bytes were read and match.
func (b *body) check() error {
	if b.left > 0 {
		return fmt.Errorf("%w: %d bytes left after the last record", ErrDamaged, b.left)
	}
	return b.end()
}
