package logstream

import (
	"io"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
)

const (
	// queueSize is the maximum number of lines that wait for a stalled reader. Further lines are dropped.
	queueSize = 4096
	// flushTimeout limits the wait for the reader at the end. On a busy machine, a reader that has not stalled may
	// need a good part of it for the last lines, which have the reason for the end.
	flushTimeout = 2 * time.Second
)

// queue is a writer that never waits for its reader, because a stalled log must not keep etcd from serving or
// stopping.
type queue struct {
	lines chan []byte
	lost  atomic.Int64
}

// NeverWait returns a writer that passes lines to another writer in the background, and a function that writes the
// remaining lines. Any goroutine may write; the owner calls flush last. If the reader has stalled, flush gives up
// after two seconds.
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

// Write implements io.Writer. Any goroutine may call it.
func (q *queue) Write(line []byte) (int, error) {
	select {
	case q.lines <- append([]byte{}, line...): // never nil
	default:
		q.lost.Add(1)
	}
	return len(line), nil
}

// pass writes lines until it receives nil, which ends the queue.
func (q *queue) pass(to io.Writer, flushed chan<- struct{}) {
	defer close(flushed)
	for line := range q.lines {
		if line == nil {
			return
		}
		_, _ = to.Write(line) // errors cannot be reported anywhere else
		if lost := q.lost.Swap(0); lost > 0 {
			logger := New(to, zerolog.DebugLevel)
			logger.Warn().Int64("lines", lost).Msg("log lines lost: the reader of the log is too slow")
		}
	}
}
