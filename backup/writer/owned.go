package writer

import (
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format/segment"
	"etcd-wrapper/backup/store"
)

// owned is what the goroutine of Run knows and decides by.
type owned struct {
	ending     bool               // Run's context has ended
	archive    *archive.Archive   // nil until it could be opened
	abilities  store.Abilities    // of its store
	generation archive.Generation // Number is 0 until it is known
	foreign    bool               // the store must not be written
	came       []way              // that etcd's data are known to have gone, oldest first
	strange    bool               // whether the chain is of these data cannot be told
	vetted     time.Time          // when the store was last seen to be this cluster's; zero if that is in doubt
	busy       bool               // a request about the chain is under way; there is one at a time
	asked      time.Time          // since when it is
	troubles   [abouts]*trouble   // nil while all is well
	local      *Trouble           // nil while what changes can be captured
	patience   time.Time          // nothing is asked about the chain before

	revision int64 // etcd's, as last seen
	leads    bool  // this member is the leader
	tookOver bool  // nobody else extends the chain, so this member does

	stored   segment.Position // where the chain in the store ends; zero if it is unknown or there is none
	storedAt time.Time        // when that was last known to be so
	looked   watched          // for those who watch others extend it
	last     segment.Position // of the newest segment that is known to be in the store; zero if none is
	beyond   segment.Position // where a new chain leaves alone what is damaged; zero if nothing is
	replaced string           // what was wrong with the full that another was made in the place of
	newest   string           // the newest full in the store, as far as this member knows; empty if it knows none
	checked  time.Time        // when the store was last asked whether it still has that
	stale    bool             // the head must be looked at before anything is stored
	fence    fence            // a later leader's end of the chain
	lags     time.Time        // since when this member's small buckets have been older than the chain's; zero if they aren't
	ahead    time.Time        // since when the chain in the store has been ahead of this member's data; zero if it isn't

	tail     *segment.Start            // what the next segment goes on from; nil if it is unknown
	waiting  []waiting                 // segments that are not in the store, in order
	held     *segment.Object           // the last of them, if the volume would not take it
	markers  []marker                  // since the last capture
	lastTime time.Time                 // of any marker in this generation
	buckets  map[string]segment.Digest // of the small ones, as the chain has them; nil if that is unknown
	hashes   map[segment.CompactionHash]bool

	captured     time.Time // when the last segment was captured
	examined     time.Time // when it was last looked whether there is something to capture
	applied      uint64    // etcd's applied index as the small buckets were last looked at
	bucketsAfter time.Time // when they may be looked at again
	hurry        bool      // somebody waits for a capture

	gap       gap
	chainless bool      // there is no chain to go on with: a full must come first
	full      *full     // in the making
	fullAfter time.Time // none is begun or stored before
	fullsDue  []due
	nextFull  time.Time // by schedule; zero if there is none
	wall      time.Time // as the schedule was last looked at
	rested    time.Time // no gap is answered with a full before

	merging   merging
	reserving reserving
	flushes   []flush
	left      *brought // nil as long as there may be something to bring
	statistic Facts    // counters and what was last done
}

// brought is how it ended for a member that brings segments only.
type brought struct {
	err error // ErrNoChain, or nil: the store has all that this member has
}

// waiting is a segment that is captured and not in the store.
type waiting struct {
	position, next segment.Position
	before         segment.Digest // the chain's digest at the position
	size           int64          // bytes
	since          time.Time      // when its first change was seen, by the monotonic clock
}

// marker tells when a revision was the present one.
type marker struct {
	segment.Marker
	seen time.Time // when that was, by the monotonic clock: the Time of a generation never goes back, though a clock was ahead
}

// writes tells whether this member extends the chain.
func (o *owned) writes() bool {
	if o.foreign {
		return false
	}
	return o.leads || o.tookOver && o.abilities.CreateIfAbsent
}
