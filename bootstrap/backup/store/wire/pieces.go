package wire

import (
	"errors"
	"io"
	"sync"
)

// PieceSize is how much of an upload is in memory at a time, in bytes. With S3's 10,000 parts an object can have 80 GB.
const PieceSize = 8 << 20

// buffers keeps a buffer from one upload to the next: there is one every second.
var buffers = sync.Pool{New: func() any { return new([PieceSize]byte) }}

// Pieces cuts what is to be uploaded. It belongs to one goroutine and must be closed.
type Pieces struct {
	content io.Reader
	buffer  *[PieceSize]byte
}

// NewPieces begins at the beginning of content.
func NewPieces(content io.Reader) *Pieces {
	return &Pieces{content: content, buffer: buffers.Get().(*[PieceSize]byte)}
}

// Next returns the next piece, which is valid until the next call. All but the last have PieceSize bytes; the last one has
// fewer, perhaps none. An error is content's.
func (p *Pieces) Next() (piece []byte, last bool, err error) {
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

// Close gives the buffer back.
func (p *Pieces) Close() {
	buffers.Put(p.buffer)
	p.buffer = nil
}
