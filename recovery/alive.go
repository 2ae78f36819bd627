package recovery

import (
	"fmt"
	"time"

	"etcd-wrapper/backup/archive"
)

// stillness is how long a cluster that was seen to live must not have added to its backups before another one takes its place.
const stillness = time.Minute

// sighting is when a generation was last seen to go on that this run was about to replace.
type sighting struct {
	at         time.Time // zero if none was
	generation int
	revision   int64
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

// lives says that the cluster whose backups these are was seen to live, and may still.
func (r *run) lives(now inStore) error {
	seen := &r.alive
	if seen.at.IsZero() || now.newest.Number != seen.generation {
		return nil
	}
	if revision := now.head.Revision(); revision > seen.revision {
		seen.at, seen.revision = r.now(), revision
	}
	if r.now().Sub(seen.at) >= stillness {
		return nil
	}
	return fmt.Errorf("generation %d of %s, of cluster %s, went on to revision %d at %s",
		seen.generation, r.options.Archive, now.newest.Cluster, seen.revision, seen.at.UTC().Format(time.RFC3339))
}
