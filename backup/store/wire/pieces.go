package wire

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"strings"
	"sync"

	"etcd-wrapper/backup/store"
)

// PieceSize is how much of an upload is in memory at a time, in bytes. With S3's 10,000 parts an object can have 80 GB.
const PieceSize = 8 << 20

// buffers keeps a buffer from one upload to the next: there is one every second.
var buffers = sync.Pool{New: func() any { return new([PieceSize]byte) }}

// Parts is an upload in pieces, which is nothing before the last. Its methods are called by one goroutine.
type Parts interface {
	// Send takes a piece, which is valid until it returns. The last one, which may be empty, makes the object of all.
	Send(piece []byte, last bool) error
	// Abort gives up what was sent.
	Abort()
}

// Upload creates an object: by whole if the content fits into one piece, otherwise with what begin opens. An error is the
// content's as it is, or one of theirs.
func Upload(content io.Reader, whole func(piece []byte) error, begin func() (Parts, error)) error {
	pieces := newPieces(content)
	defer pieces.close()
	piece, last, err := pieces.next()
	if err != nil {
		return err
	}
	if last {
		return taken(whole(piece))
	}
	parts, err := begin()
	if err != nil {
		return taken(err)
	}
	err = parts.Send(piece, last)
	for err == nil && !last {
		if piece, last, err = pieces.next(); err == nil {
			err = parts.Send(piece, last)
		}
	}
	if err != nil {
		parts.Abort()
	}
	return taken(err)
}

// taken is what a lock means to who creates an object: it is there. Some servers look at that before the condition.
func taken(err error) error {
	if errors.Is(err, store.ErrLocked) {
		return fmt.Errorf("%w: %w", store.ErrExists, err)
	}
	return err
}

// pieces cuts what is to be uploaded. It belongs to one goroutine and must be closed.
type pieces struct {
	content io.Reader
	buffer  *[PieceSize]byte
}

func newPieces(content io.Reader) *pieces {
	return &pieces{content: content, buffer: buffers.Get().(*[PieceSize]byte)}
}

// next returns the next piece, which is valid until the next call. All but the last have PieceSize bytes; the last one has
// fewer, perhaps none. An error is content's.
func (p *pieces) next() (piece []byte, last bool, err error) {
	filled := 0
	for filled < PieceSize {
		// Not io.ReadFull: with it, a content that fails with io.ErrUnexpectedEOF seems to be at its end.
		n, err := p.content.Read(p.buffer[filled:])
		filled += n
		if errors.Is(err, io.EOF) {
			return p.buffer[:filled], true, nil
		}
		if err != nil {
			return nil, false, err
		}
	}
	return p.buffer[:filled], false, nil
}

// close gives the buffer back.
func (p *pieces) close() {
	buffers.Put(p.buffer)
	p.buffer = nil
}

// ErrOtherRange says that a server does not understand ranges.
var ErrOtherRange = errors.New("the server sent another range than the one asked for, or no length")

// Range is the header that asks for length bytes, not 0, from offset on; empty if that is all.
func Range(offset, length int64) string {
	switch {
	case length >= 0:
		return fmt.Sprintf("bytes=%d-%d", offset, offset+length-1)
	case offset > 0:
		return fmt.Sprintf("bytes=%d-", offset)
	default:
		return ""
	}
}

// Begins reports whether an answer with this Content-Range, and this length of the body or -1, is what was asked for from
// offset on. Without a length, an answer that is cut off looks complete.
func Begins(contentRange string, offset, length int64) bool {
	if length < 0 {
		return false
	}
	if contentRange == "" {
		return offset == 0
	}
	var first int64
	_, err := fmt.Sscanf(contentRange, "bytes %d-", &first)
	return err == nil && first == offset
}

// Body returns the body of an answer to a request for length bytes from offset on.
func Body(response *http.Response, offset, length int64) (io.ReadCloser, error) {
	if response.StatusCode == http.StatusRequestedRangeNotSatisfiable {
		Discard(response)
		return Empty(), nil
	}
	arriving := response.ContentLength
	if len(response.TransferEncoding) > 0 {
		arriving = max(0, arriving) // chunks end with a mark
	}
	if !Begins(response.Header.Get("Content-Range"), offset, arriving) {
		_ = response.Body.Close()
		return nil, ErrOtherRange
	}
	return Limit(response.Body, length), nil
}

// Limit ends a body after length bytes, unless that is negative: a server may send everything instead of a range.
func Limit(body io.ReadCloser, length int64) io.ReadCloser {
	if length < 0 {
		return body
	}
	return struct {
		io.Reader
		io.Closer
	}{io.LimitReader(body, length), body}
}

// Empty is what lies beyond the end of an object.
func Empty() io.ReadCloser { return io.NopCloser(strings.NewReader("")) }

// Nothing closes a body that was only asked for to see whether there is one.
func Nothing(body io.ReadCloser, err error) (io.ReadCloser, error) {
	if err != nil {
		return nil, err
	}
	_ = body.Close()
	return Empty(), nil
}

// Pages lists a page at a time. page returns the objects of the page at a mark, and the next page's mark: the first one's is
// empty, and behind the last there is none. An error comes last.
func Pages(page func(mark string) (objects []store.Object, next string, err error)) iter.Seq2[store.Object, error] {
	return func(yield func(store.Object, error) bool) {
		for mark := ""; ; {
			objects, next, err := page(mark)
			if err != nil {
				yield(store.Object{}, err)
				return
			}
			for _, object := range objects {
				if !yield(object, nil) {
					return
				}
			}
			if mark = next; mark == "" {
				return
			}
		}
	}
}
