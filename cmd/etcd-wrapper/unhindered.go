package main

import (
	"io"
	"time"

	"github.com/rs/zerolog/diode"
)

const (
	// heldLines is how many log lines wait for a reader that has stalled; the oldest go first.
	heldLines = 4096
	// flushing bounds the wait for such a reader at the end.
	flushing = 200 * time.Millisecond
)

// unhindered returns a writer that never waits for to: a log that nobody reads must not keep etcd from serving or from
// being stopped. flush writes out what waits.
func unhindered(to io.Writer) (log io.Writer, flush func()) {
	var writer diode.Writer
	writer = diode.NewWriter(unclosable{to}, heldLines, 0, func(lost int) {
		logger := newLog(writer, 0)
		logger.Warn().Int("lines", lost).Msg("nobody reads the log; lines were lost")
	})
	return writer, func() {
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = writer.Close() // there is nobody to tell
		}()
		select {
		case <-done:
		case <-time.After(flushing):
		}
	}
}

// unclosable keeps the writer from closing stderr, to which Go's runtime writes when it crashes.
type unclosable struct{ io.Writer }
