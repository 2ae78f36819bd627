package recovery

import (
	"context"
	"fmt"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/store"
)

// stillness is how long nobody may have added to a generation before another process takes its place, by the store's clock. A writer
// that has nothing to add says so every 30 s. It is text for the linker, since the suites build a program that waits less.
var stillness = "90s"

// life is what speaks for a process somewhere else that still writes the newest generation.
type life struct {
	ahead *time.Duration // how much the store's clock is ahead of this one's; nil before it was looked at
	added time.Time      // when the end of the generation was added, by the store's clock
	seen  time.Time      // when this run first saw that, by this clock
	until time.Time      // when the generation will have been silent for long enough, by this clock; zero if nothing is waited for
}

// restoredFrom is the generation that was restored from a cluster's; the zero value if none was.
func restoredFrom(generations []archive.Generation, cluster string) (next archive.Generation) {
	at := placeOf(generations, cluster)
	if at < 0 || at+1 == len(generations) || generations[at+1].Parent != generations[at].Number {
		return next
	}
	return generations[at+1]
}

// leftBehind is how much the volume got after another cluster had taken its place.
func (r *run) leftBehind() string {
	next := r.kept.successor
	if next.Number == 0 || r.stands.HighestRevision <= next.ParentRevision {
		return ""
	}
	return fmt.Sprintf("; %d revisions are lost, which generation %d got after revision %d, from which generation %d was restored",
		r.stands.HighestRevision-next.ParentRevision, next.Parent, next.ParentRevision, next.Number)
}

// lives says that the process that writes the newest generation may be alive: it has not released the generation, this volume neither was
// its own nor has everything that it wrote, no person has said otherwise, and it has not been silent for long enough. The end of the
// generation keeps the data in any case; this keeps people from two clusters.
func (r *run) lives(ctx context.Context, now inStore) (why, err error) {
	r.life.until = time.Time{}
	head := now.head
	ended := head.Released() || head.Ending() != nil
	wasHere := r.core.Facts.Condition == Valid && !r.behind(now) || r.identity.Session != "" && r.identity.Session == head.Session()
	if r.stillness == 0 || ended || wasHere || now.adopted {
		return nil, nil
	}
	added, err := r.options.Archive.LastAdded(ctx, now.newest, head)
	if err != nil {
		return nil, err
	}
	if r.life.ahead == nil {
		clock, err := store.Clock(ctx, r.options.Archive.Store())
		if err != nil {
			return nil, err
		}
		ahead := clock.Sub(r.now())
		r.life.ahead = &ahead
	}
	if !added.Equal(r.life.added) {
		r.life.added, r.life.seen = added, r.now()
	}
	until := added.Add(r.stillness - *r.life.ahead)
	if latest := r.life.seen.Add(r.stillness); until.After(latest) { // what says that it comes from the future is silent from now on
		until = latest
	}
	if !r.now().Before(until) {
		return nil, nil
	}
	r.life.until = until
	return fmt.Errorf("generation %d of %s was added to at %s by the store's clock, by cluster %s: nothing takes its place before %s",
		now.newest.Number, r.options.Archive, added.UTC().Format(time.TimeOnly), now.newest.Cluster, until.UTC().Format(time.TimeOnly)), nil
}
