package maintenance

import (
	"sync/atomic"
	"time"
)

// firstPace is what a defragmentation is expected to copy in a second before one was measured: half of what two slow cores
// and an average disk of a cloud do.
const firstPace = 100 * mebibyte

// worthMeasuring is how many bytes must have been copied for the pace to say something.
const worthMeasuring = 16 * mebibyte

// pace is how fast this member defragments, in bytes in use per second.
type pace struct{ measured atomic.Int64 }

func (p *pace) perSecond() int64 {
	if measured := p.measured.Load(); measured > 0 {
		return measured
	}
	return firstPace
}

// expected is how long it takes to defragment so many bytes in use.
func (p *pace) expected(inUse int64) time.Duration {
	return time.Duration(float64(inUse) / float64(p.perSecond()) * float64(time.Second))
}

// learn takes in how long one took.
func (p *pace) learn(inUse int64, took time.Duration) {
	if inUse >= worthMeasuring && took > 0 {
		p.measured.Store(max(1, int64(float64(inUse)/took.Seconds())))
	}
}
