package wire

import (
	"errors"
	"fmt"
	"io"
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
