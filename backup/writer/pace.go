package writer

import (
	"time"

	"etcd-wrapper/backup/archive"
)

// pace is how long is waited for what.
type pace struct {
	tick    time.Duration // between looks at etcd's revision: markers of the time are that far apart at least
	gap     time.Duration // another member has so long to bring what it has in its spool, before a gap counts
	rest    time.Duration // at least between a full and one for a gap; see restFactor
	ahead   time.Duration // a leader may take so long to apply what was acknowledged before it led
	foreign time.Duration // a store that must not be written is left alone
	watch   time.Duration // at least between looks of a member that does not lead at whether the chain grows
	young   time.Duration // the same where there is no chain yet
	knows   time.Duration // what is known of the end of the chain is good for so long
	merge   time.Duration // between merges
	bear    time.Duration // whoever waits for a full waits no longer while there is trouble
	retry   time.Duration // about so long after a failure it is tried again first, then later and later
}

var usual = pace{
	tick: 100 * time.Millisecond, gap: 2 * time.Second, rest: 10 * time.Second, ahead: 10 * time.Second,
	foreign: time.Minute, knows: archive.Grace, watch: 10 * time.Second, young: time.Second, merge: time.Minute, retry: 500 * time.Millisecond, bear: 30 * time.Second,
}

// restFactor bounds what fulls for gaps may take of the time: where somebody compacts at the head all the time, each chain ends
// soon.
const restFactor = 10

// latestRetry is after how long a full that failed is tried again at the latest, unless the store asks for more.
const latestRetry = 5 * time.Minute

// rest is how long a full that failed is left alone, if the store was to be left alone for a while: the longer the attempt took, the
// longer, so that a large database is not copied or sent all the time.
func (s *Shipper) rest(f *full, wait time.Duration) time.Duration {
	if f.tried.IsZero() || len(s.flushes) > 0 || s.troubles[aboutFull] == nil {
		return wait
	}
	wait = max(wait, min(restFactor*time.Since(f.tried), latestRetry))
	s.troubles[aboutFull].next = s.options.Now().Add(wait)
	return wait
}
