package writer

import (
	"io"
	"time"
)

const (
	gentlePiece = 1 << 20 // bytes between rests
	longestRest = 20 * time.Millisecond
)

// gentle is a reader that rests as long as whoever reads has worked on each piece. Compressing a full would otherwise keep a
// core busy for as long as it takes, which clients of etcd notice where there are few.
type gentle struct {
	io.Reader
	since int       // bytes since the last rest
	begun time.Time // of the work on the present piece; zero before the first one
}

func (g *gentle) Read(p []byte) (int, error) {
	if g.since >= gentlePiece {
		time.Sleep(min(time.Since(g.begun), longestRest))
		g.since, g.begun = 0, time.Now()
	}
	if g.begun.IsZero() {
		g.begun = time.Now()
	}
	n, err := g.Reader.Read(p)
	g.since += n
	return n, err
}
