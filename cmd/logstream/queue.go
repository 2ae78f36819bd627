package logstream

import (
	"io"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
)

const (
	// queueSize is the number of lines that are held for a stalled reader; further ones are lost.
	queueSize = 4096
	// flushTimeout bounds each of the two waits for such a reader at the end.
	flushTimeout = 100 * time.Millisecond
)

// queue is a writer that never waits for its reader: a stalled log must not keep etcd from serving or stopping.
type queue struct {
	lines chan []byte
	lost  atomic.Int64
}

// NeverWait returns a writer for any goroutine that passes lines on to another and never waits for it. flush, which the
// owner calls last, writes out what is still held; with a reader that has stalled it gives up after 200 ms.
func NeverWait(to io.Writer) (log io.Writer, flush func()) {
	q := &queue{lines: make(chan []byte, queueSize)}
	flushed := make(chan struct{})
	go q.pass(to, flushed)
	return q, func() {
		select {
		case q.lines <- nil:
		case <-time.After(flushTimeout):
			return
		}
		select {
		case <-flushed:
		case <-time.After(flushTimeout):
		}
	}
}

// Write implements io.Writer. Any goroutine may call it.
func (q *queue) Write(line []byte) (int, error) {
	select {
	case q.lines <- append([]byte{}, line...): // never nil
	default:
		q.lost.Add(1)
	}
	return len(line), nil
}

// pass runs until nil is in the queue, which no line is.
func (q *queue) pass(to io.Writer, flushed chan<- struct{}) {
	defer close(flushed)
	for line := range q.lines {
		if line == nil {
			return
		}
		_, _ = to.Write(line) // there is no other place to report it
		if lost := q.lost.Swap(0); lost > 0 {
			logger := New(to, zerolog.DebugLevel)
			logger.Warn().Int64("lines", lost).Msg("log lines lost: the reader of the log is too slow")
		}
	}
}
