package segment

import (
	"bytes"
	"crypto/sha256"
	"hash"
	"io"
)

// Sizes of pieces in bytes. They grow with what there is, so a small segment takes little.
const (
	leastPiece = 4 << 10
	mostPiece  = 256 << 10
)

// pieces are bytes in memory that are never copied to make room: a segment of 8 MiB takes no more than that.
type pieces struct {
	all  [][]byte
	size int64
	hash hash.Hash
}

func newPieces() *pieces { return &pieces{hash: sha256.New()} }

func (p *pieces) Write(b []byte) (int, error) {
	p.hash.Write(b)
	p.size += int64(len(b))
	for rest := b; len(rest) > 0; {
		last := len(p.all) - 1
		if last < 0 || len(p.all[last]) == cap(p.all[last]) {
			p.all = append(p.all, make([]byte, 0, min(max(p.size, leastPiece), mostPiece)))
			last++
		}
		n := min(len(rest), cap(p.all[last])-len(p.all[last]))
		p.all[last] = append(p.all[last], rest[:n]...)
		rest = rest[n:]
	}
	return len(b), nil
}

// body is what a manifest says of them.
func (p *pieces) body() Body { return Body{Bytes: p.size, SHA256: Digest(p.hash.Sum(nil))} }

func (p *pieces) reader() io.Reader {
	var readers []io.Reader
	for _, piece := range p.all {
		readers = append(readers, bytes.NewReader(piece))
	}
	return io.MultiReader(readers...)
}
