package segment

import (
	"bufio"
	"fmt"
	"io"

	"etcd-wrapper/backup/format/seal"
)

// Reader reads segments, one after the other. It checks everything that can be known without the ones before: what was read
// of a segment counts only when its end was reached without an error. One goroutine owns it.
//
// Errors wrap those of package seal where something is wrong with what was read; what reading itself failed with comes
// through. After an error every call returns it again.
type Reader struct {
	keys   *seal.Keys
	source *bufio.Reader

	manifest Manifest
	body     *body    // what is left of the present segment; nil before the first one
	records  *records // nil before the first record of a segment
	ended    bool     // the end of the present segment's records was reached
	err      error
}

// NewReader reads from r, in bounded memory, whatever r holds.
func NewReader(r io.Reader, keys *seal.Keys) *Reader {
	return &Reader{keys: keys, source: bufio.NewReaderSize(r, 64<<10)}
}

// Next goes on to the next segment. What is left of the one before is read and compared with its digest, but not opened, so a
// caller who wants no records needs no identity. io.EOF says that there is no further one.
func (r *Reader) Next() (Manifest, error) {
	if r.err == nil {
		r.err = r.next()
	}
	if r.err != nil {
		return Manifest{}, r.err
	}
	return r.manifest, nil
}

func (r *Reader) next() error {
	if err := r.finish(); err != nil {
		return err
	}
	line, err := seal.ReadLine(r.source)
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

// ReadManifest reads the line that a segment begins with.
func ReadManifest(line []byte, keys *seal.Keys) (Manifest, error) {
	var manifest Manifest
	if err := keys.Check(line, Kind, &manifest); err != nil {
		return Manifest{}, err
	}
	if err := manifest.check(); err != nil {
		return Manifest{}, fmt.Errorf("segment %s: %w", manifest.Position, seal.Damaged(err))
	}
	return manifest, nil
}

// finish reads what is left of the present segment.
func (r *Reader) finish() error {
	if r.body == nil {
		return nil
	}
	r.close()
	_, err := io.Copy(io.Discard, r.body)
	r.body = nil
	return r.named(err)
}

// Record returns the next record of the segment, which is valid until the next call. io.EOF says that the segment ended, and
// that all of it was as its manifest says.
func (r *Reader) Record() (Record, error) {
	switch {
	case r.err != nil:
		return nil, r.err
	case r.body == nil || r.ended:
		return nil, io.EOF
	}
	record, err := r.record()
	if seal.Ended(err) {
		r.ended = true
		return nil, io.EOF
	}
	r.err = r.named(err)
	return record, r.err
}

func (r *Reader) record() (Record, error) {
	if r.records == nil {
		plain, err := r.keys.Open(r.body, r.manifest.Encrypted)
		if err != nil {
			return nil, err
		}
		r.records = newRecords(plain, r.manifest)
	}
	record, err := r.records.next()
	if !seal.Ended(err) {
		return record, err
	}
	r.close()
	if err := r.body.check(); err != nil {
		return nil, err
	}
	return nil, io.EOF
}

func (r *Reader) close() {
	if r.records != nil {
		_ = r.records.plain.Close()
		r.records = nil
	}
}

func (r *Reader) named(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("segment %s: %w", r.manifest.Position, err)
}
