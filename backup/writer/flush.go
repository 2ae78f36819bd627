package writer

import (
	"errors"
	"time"

	"etcd-wrapper/backup/format"
)

// flushQueue answers the calls of Flush.
type flushQueue struct {
	base
	waiting []flush
	result  error // in the states drained and ended
}

// flush is a waiting call of Flush.
type flush struct {
	revision int64 // etcd's, when it was called
	at       time.Time
	target   format.Position // end of the segments that contain everything; zero until that is captured
	epoch    int             // of the chain, to which the target belongs
	done     chan<- error
}

// add adds a flush and ends all waits that only save requests.
func (f *flushQueue) add(done chan<- error) {
	f.waiting = append(f.waiting, flush{revision: f.options.Etcd.Revision(), at: time.Now(), done: done})
	f.health.flushing, f.chain.urgent, f.health.notBefore = true, true, time.Time{}
}

// complete answers the flushes that are complete or cannot complete here. notWriter is why this member makes no backups; nil if it does.
func (f *flushQueue) complete(notWriter error) {
	waiting := f.waiting[:0]
	for _, flush := range f.waiting {
		if done, err := f.check(&flush, notWriter); done {
			flush.done <- err
		} else {
			waiting = append(waiting, flush)
		}
	}
	f.waiting, f.health.flushing = waiting, len(waiting) > 0
}

// check reports whether a flush is done, and its result.
func (f *flushQueue) check(flush *flush, notWriter error) (done bool, result error) {
	c := f.chain
	if flush.epoch != c.epoch {
		flush.target, flush.epoch = format.Position{}, c.epoch
	}
	if flush.target.IsZero() && c.tail != nil && c.tail.Position.Revision > flush.revision && c.examined.After(flush.at) {
		flush.target = c.tail.Position
	}
	switch {
	case f.isIn(drained, ended):
		return true, f.result
	case f.isStored(c.released):
		return true, nil
	case f.isStored(flush.target) && !f.remote.storedAt.IsZero():
		if c.release() {
			flush.target = c.released
			return false, nil
		}
		return true, nil
	case notWriter != nil && (!errors.Is(notWriter, ErrNotWriter) || len(c.spool.Entries()) == 0):
		return true, notWriter
	}
	return false, nil
}

func (f *flushQueue) isStored(position format.Position) bool {
	return !position.IsZero() && f.remote.head.Position.Compare(position) >= 0
}
