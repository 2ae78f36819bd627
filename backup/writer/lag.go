package writer

import (
	"slices"
	"time"
)

// lag records when each revision that is not stored was first observed, oldest first. Capturing revisions again does
// not change it.
type lag []sample

type sample struct {
	revision int64     // covers the revisions after the previous observation up to this one
	at       time.Time // by the monotonic clock
}

// maxObservations bounds a lag.
const maxObservations = 1024

func (l *lag) add(revision int64, at time.Time) {
	if len(*l) > 0 && revision <= (*l)[len(*l)-1].revision {
		return
	}
	if len(*l) == maxObservations { // halve it: merge pairs and keep the earlier time
		for i := range maxObservations / 2 {
			(*l)[i] = sample{(*l)[2*i+1].revision, (*l)[2*i].at}
		}
		*l = (*l)[:maxObservations/2]
	}
	*l = append(*l, sample{revision, at})
}

// drop removes revisions that are stored.
func (l *lag) drop(stored int64) {
	*l = slices.DeleteFunc(*l, func(o sample) bool { return o.revision <= stored })
}
