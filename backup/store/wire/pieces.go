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

// PieceSize is the size of the upload buffer, in bytes. With S3's 10,000 parts an object can have 80 GB.
const PieceSize = 8 << 20

// buffers reuses buffers: there is an upload every second.
var buffers = sync.Pool{New: func() any { return new([PieceSize]byte) }}

// Parts is an upload in pieces, which creates nothing before the last. It is not safe for concurrent use.
type Parts interface {
	// Send uploads a piece, which is valid until it returns. The last one may be empty; it creates the object.
	Send(piece []byte, last bool) error
	// Abort discards the upload.
	Abort()
}

// Upload creates an object: by whole if the content fits into one piece, otherwise by the upload that begin starts. Errors of content
// are returned unchanged.
func Upload(content io.Reader, whole func(piece []byte) error, begin func() (Parts, error)) error {
	pieces := newPieces(content)
	defer pieces.close()
	piece, last, err := pieces.read()
	if err != nil {
		return err
	}
	if last {
		return lockedToExists(whole(piece))
	}
	parts, err := begin()
	if err != nil {
		return lockedToExists(err)
	}
	err = parts.Send(piece, last)
	for err == nil && !last {
		if piece, last, err = pieces.read(); err == nil {
			err = parts.Send(piece, last)
		}
	}
	if err != nil {
		parts.Abort()
	}
	return lockedToExists(err)
}

// lockedToExists turns ErrLocked into ErrExists: some servers check the lock of an existing object before the condition.
func lockedToExists(err error) error {
	if errors.Is(err, store.ErrLocked) {
		return fmt.Errorf("%w: %w", store.ErrExists, err)
	}
	return err
}

// pieces splits content. It is not safe for concurrent use and must be closed.
type pieces struct {
	content io.Reader
	buffer  *[PieceSize]byte
}

func newPieces(content io.Reader) *pieces {
	return &pieces{content: content, buffer: buffers.Get().(*[PieceSize]byte)}
}

// read returns the next piece, which is valid until the next call. All but the last have PieceSize bytes; the last one may be
// empty. Errors are those of content.
func (p *pieces) read() (piece []byte, last bool, err error) {
	filled := 0
	for filled < PieceSize {
		// io.ReadFull would take an io.ErrUnexpectedEOF of content for its end.
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

// close releases the buffer.
func (p *pieces) close() {
	buffers.Put(p.buffer)
	p.buffer = nil
}

// ErrOtherRange is the error of a server that ignores ranges.
var ErrOtherRange = errors.New("the server sent a range other than requested, or no length")

// Range returns the header that requests length bytes, not 0, from offset, or "" for the whole object.
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

// IsRangeFrom reports whether a response with this Content-Range and body length, or -1, starts at offset. Without a length, a truncated
// response would look complete.
func IsRangeFrom(contentRange string, offset, length int64) bool {
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

// Body returns the body of a response to a request for length bytes from offset.
func Body(response *http.Response, offset, length int64) (io.ReadCloser, error) {
	if response.StatusCode == http.StatusRequestedRangeNotSatisfiable {
		Discard(response)
		return Empty(), nil
	}
	arriving := response.ContentLength
	if len(response.TransferEncoding) > 0 {
		arriving = max(0, arriving) // chunked encoding marks its end
	}
	if !IsRangeFrom(response.Header.Get("Content-Range"), offset, arriving) {
		_ = response.Body.Close()
		return nil, ErrOtherRange
	}
	return Limit(response.Body, length), nil
}

// Limit ends a body after length bytes, unless that is negative: a server may send more than the range.
func Limit(body io.ReadCloser, length int64) io.ReadCloser {
	if length < 0 {
		return body
	}
	return struct {
		io.Reader
		io.Closer
	}{io.LimitReader(body, length), body}
}

// Empty returns an empty body.
func Empty() io.ReadCloser { return io.NopCloser(strings.NewReader("")) }

// EmptyIfExists closes a body that was only requested to check for the object.
func EmptyIfExists(body io.ReadCloser, err error) (io.ReadCloser, error) {
	if err != nil {
		return nil, err
	}
	_ = body.Close()
	return Empty(), nil
}

// Pages lists objects page by page. page returns the objects at a mark, and the mark of the next page. The first mark is empty, and so
// is the one after the last page.
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
