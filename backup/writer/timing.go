package writer

import (
	"math"
	"time"

	"etcd-wrapper/backup/archive"
)

const (
	// requestTimeout bounds a few requests to the store that transfer little.
	requestTimeout = 2 * time.Minute
	// checkTimeout bounds one check of the store.
	checkTimeout = 30 * time.Second
	// noTimeout allows any time for copies and uploads of a database, which may be large.
	noTimeout = time.Duration(math.MaxInt64)
)

// timing holds the intervals and limits of a writer.
type timing struct {
	tick         time.Duration // between observations of etcd's revision, hence between time markers
	gap          time.Duration // time for another member to upload its spool before a gap counts
	rest         time.Duration // minimum between a full snapshot and one for a gap; see restFactor
	ahead        time.Duration // time for a new leader to apply what was acknowledged before
	foreignStore time.Duration // between inspections of a store that must not be written
	watch        time.Duration // minimum between growth checks by a member that does not lead
	emptyStore   time.Duration // the same without a chain
	headValid    time.Duration // how long the end of the chain counts as known
	verifyOwner  time.Duration // between checks that the store is still this cluster's
	successor    time.Duration // between checks for a successor
	heartbeat    time.Duration // between empty segments of an idle writer
	fullPatience time.Duration // how long FullNow waits while there is a problem
	retry        time.Duration // first wait after a failure; it grows with further failures
	check        time.Duration // between checks that the store still has what was stored
	overdue      time.Duration // beyond two intervals, until an unstored revision is a problem of its own
}

var defaultTiming = timing{
	tick: 100 * time.Millisecond, gap: 2 * time.Second, rest: 10 * time.Second, ahead: 10 * time.Second,
	foreignStore: time.Minute, headValid: archive.HeadValid, watch: 10 * time.Second, emptyStore: time.Second,
	retry: 500 * time.Millisecond, fullPatience: 30 * time.Second,
	successor: 10 * time.Second, heartbeat: 40 * time.Second, verifyOwner: 30 * time.Minute, overdue: 10 * time.Second, check: 10 * time.Second,
}
