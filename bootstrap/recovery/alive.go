package recovery

import (
	"fmt"
	"time"
)

// stillness is how long a cluster that was seen to live must not have added to its backups before another one takes its place.
const stillness = time.Minute

// sighting is when a generation was last seen to go on that this run was about to replace.
type sighting struct {
	at         time.Time // zero if none was
	generation int
	revision   int64
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
