package logstream

import (
	"io"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
)

const (
	// queueSize is the maximum number of queued lines. While the queue is full, new lines are dropped and counted.
	queueSize = 4096
	// flushTimeout limits how long flush waits until the queued lines have been read. On a busy machine, even a
	// healthy reader may need most of this time for the last lines, which include the reason for the exit.
	flushTimeout = 2 * time.Second
)

// A queue is a writer that never waits for its reader, because a stalled reader must not prevent etcd from serving or
// stopping.
type queue struct {
	lines chan []byte
	lost  atomic.Int64
}

// NeverWait returns a writer that forwards lines to another writer in the background, and a function that flushes the
// queued lines. The writer is safe for concurrent use, but flush must be called last. If the reader has stalled,
// flush returns after two seconds.
func NeverWait(to io.Writer) (log io.Writer, flush func()) {
	q := &queue{lines: make(chan []byte, queueSize)}
	flushed := make(chan struct{})
	go q.pass(to, flushed)
	return q, func() {
		timeout := time.After(flushTimeout)
		select {
		case q.lines <- nil:
		case <-timeout:
			return
		}
		select {
		case <-flushed:
		case <-timeout:
		}
	}
}

// Write implements io.Writer. Write is safe for concurrent use.
func (q *queue) Write(line []byte) (int, error) {
	select {
	case q.lines <- append([]byte{}, line...): // never nil, which would end pass
	default:
		q.lost.Add(1)
	}
	return len(line), nil
}

// pass writes queued lines to to until it receives nil, which marks the end.
func (q *queue) pass(to io.Writer, flushed chan<- struct{}) {
	defer close(flushed)
	for line := range q.lines {
		if line == nil {
			return
		}
		_, _ = to.Write(line) // there is nowhere else to report an error
		if lost := q.lost.Swap(0); lost > 0 {
			logger := New(to, zerolog.DebugLevel)
			logger.Warn().Int64("lines", lost).Msg("log lines were dropped because the log reader is too slow")
		}
	}
}
