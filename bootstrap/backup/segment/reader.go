package segment

import (
	"bufio"
	"errors"
	"io"

	"etcd-wrapper/bootstrap/backup/seal"
)

// Reader reads segments, one after the other. It checks everything that can be known without the ones before: what was read
// of a segment counts only when its end was reached without an error. One goroutine owns it.
//
// Errors wrap those of package seal where something is wrong with what was read; what reading itself failed with comes
// through.
type Reader struct {
	keys  *seal.Keys
	lines *bufio.Reader
}

// NewReader reads from r, in bounded memory, whatever r holds.
func NewReader(r io.Reader, keys *seal.Keys) *Reader {
	return &Reader{keys: keys, lines: bufio.NewReaderSize(r, 64<<10)}
}

// Next goes on to the next segment. What is left of the one before is read and compared with its digest, but not opened, so a
// caller who wants no records needs no identity. io.EOF says that there is no further one.
func (r *Reader) Next() (Manifest, error) { return Manifest{}, errors.New("unfinished") }

// Record returns the next record of the segment, which is valid until the next call. io.EOF says that the segment ended, and
// that all of it was as its manifest says.
func (r *Reader) Record() (Record, error) { return nil, errors.New("unfinished") }

// Offset is how many bytes lie before the segment that Next returned.
func (r *Reader) Offset() int64 { return 0 }
