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

// SegmentReader reads consecutive segments. It checks everything that can be checked without the previous ones. The
// content of a segment counts only after its end was reached without an error. It is not safe for concurrent use.
//
// Errors about the content wrap ErrDamaged and the like; errors of the underlying reader are returned unchanged.
// After an error every call returns it again.
type SegmentReader struct {
	keys   *Keys
	source *bufio.Reader

	manifest Manifest
	body     *body // rest of the current segment; nil before the first one
	ended    bool  // the end of the current segment was reached
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

// NewSegmentReader reads from r, in bounded memory for any content.
func NewSegmentReader(r io.Reader, keys *Keys) *SegmentReader {
	return &SegmentReader{keys: keys, source: bufio.NewReaderSize(r, 64<<10)}
}

// Next advances to the next segment. It verifies the digest of the rest of the current one without decrypting it,
// so a caller who needs no records needs no identity. It returns io.EOF after the last one.
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

// ReadManifest reads the first line of a segment.
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

// Record returns the next record, which is valid until the next call. It returns io.EOF at the end of the segment,
// after everything was verified against the manifest.
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
		start.Last = Digest{} // the records of this segment yield it
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

// recordOf returns the record into which one of that type is read. Only a bucket is not used again.
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

// end checks the totals, and returns io.EOF if they are right.
func (r *SegmentReader) end() error {
	count, err := r.number()
	if err != nil {
		return err
	}
	if count != r.count {
		return fmt.Errorf("%w: it has %d records instead of %d", ErrDamaged, r.count, count)
	}
	if _, err := r.buffered.ReadByte(); !Ended(err) {
		return errors.Join(err, fmt.Errorf("%w: unexpected data after its last record", ErrDamaged))
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
		return 0, fmt.Errorf("%w: a number is too large", ErrDamaged)
	}
	return int64(n), nil
}

// bytes reads a length and that many bytes, into room if they fit.
func (r *SegmentReader) bytes(room []byte, most int64) ([]byte, error) {
	length, err := r.number()
	if err != nil {
		return nil, err
	}
	if length > most {
		return nil, fmt.Errorf("%w: a field of %d bytes exceeds the limit of %d", ErrDamaged, length, most)
	}
	room = room[:0]
	for int64(len(room)) < length { // read in pieces, because the length may be forged
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
		return fmt.Errorf("%w: its records are truncated", ErrDamaged)
	}
	return err
}

// Body is a statement's description of bytes.
type Body struct {
	Bytes  int64  `json:"bytes"`
	SHA256 Digest `json:"sha256"`
}

// Reader reads exactly the described bytes from source. It returns io.EOF only if all of them were there and match;
// otherwise ErrDamaged, or the error of source.
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
		return n, fmt.Errorf("%w: %d bytes are missing at its end", ErrDamaged, b.left)
	}
	return n, b.end()
}

func (b *body) end() error {
	if Digest(b.hash.Sum(nil)) != b.promised {
		return fmt.Errorf("%w: its content does not match its manifest", ErrDamaged)
	}
	return io.EOF
}

// check returns io.EOF if everything was read and matches.
func (b *body) check() error {
	if b.left > 0 {
		return fmt.Errorf("%w: %d unread bytes follow its records", ErrDamaged, b.left)
	}
	return b.end()
}
