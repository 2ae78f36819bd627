package recovery

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/store"
)

// Owner is whose backups a store has, as seen by the member that asks.
type Owner string

// The owners.
const (
	Nobody   Owner = "nobody's"   // nothing was ever kept: there is no birth certificate
	Ours     Owner = "ours"       // this cluster's
	Doubtful Owner = "doubtful"   // the volume tells no cluster, and the configuration would found another one
	Unknown  Owner = "unknown"    // what the store says of itself is not believed, and no name there tells of more than the volume has
	Others   Owner = "of another" // the volume is another cluster's than any that wrote it
)

// born is how a store tells whose it is; first has no cluster if nobody is known to have written it. The certificate is the oldest object,
// and the first that a bucket lets go of which keeps nothing for ever, and it may decay: the first generation names the cluster as well.
func (r *run) born(ctx context.Context) (first archive.Cluster, generations []archive.Generation, err error) {
	first, why := r.options.Archive.Cluster(ctx)
	if why != nil && !errors.Is(why, store.ErrNotFound) && !disbelieved(why) {
		return first, nil, why
	}
	generations, err = r.options.Archive.Generations(ctx)
	switch {
	case err != nil:
		return first, nil, err
	case why != nil && len(generations) > 0:
		first = archive.Cluster{Cluster: generations[0].Cluster}
	case disbelieved(why):
		return first, nil, why
	}
	return first, generations, nil
}

// unnamed is what a store has that does not tell whose it is. What there is of backups is no reason to begin anew.
func (r *run) unnamed(ctx context.Context) (inStore, Owner, error) {
	remains, err := r.options.Archive.Remains(ctx)
	if err != nil || remains == "" || r.core.Facts.Condition == Valid {
		return inStore{}, Nobody, err
	}
	return inStore{known: true, notKept: fmt.Errorf("%s has objects below %s, and neither cluster.json nor a generation.json, which say whose they are: "+
		"put these back, as from an earlier version of the bucket, or name another place", r.options.Archive, remains)}, Ours, nil
}

// owner tells whose a store is that somebody has written.
func (r *run) owner(first archive.Cluster, generations []archive.Generation) (Owner, error) {
	id := hex(r.stands.ClusterID)
	if r.stands.ClusterID == 0 {
		return r.founder(first.Cluster)
	}
	if id == first.Cluster || placeOf(generations, id) >= 0 {
		return Ours, nil
	}
	return Others, nil
}

// placeOf is where a cluster stands in the history of a store; -1 if it is not there.
func placeOf(generations []archive.Generation, cluster string) int {
	return slices.IndexFunc(generations, func(g archive.Generation) bool { return g.Cluster == cluster })
}

// founder tells by the configuration whose a cluster is: it was founded with all of the members, or with some of them and has
// grown since.
func (r *run) founder(first string) (Owner, error) {
	plan, all := r.seed(), r.member.Members
	if len(all) == 0 || len(all) > manyMembers {
		all = plan.Members
	}
	for some := 1; some < 1<<len(all); some++ {
		plan.Members = nil
		for i, member := range all {
			if some&(1<<i) != 0 {
				plan.Members = append(plan.Members, member)
			}
		}
		plan.Name = plan.Members[0].Name
		founded, err := plan.ClusterID()
		if err != nil {
			return "", err
		}
		if hex(founded) == first {
			return Ours, nil
		}
	}
	return Doubtful, nil
}

// manyMembers is how many a cluster has at the most.
const manyMembers = 9
