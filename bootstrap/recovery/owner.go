package recovery

import (
	"slices"

	"etcd-wrapper/bootstrap/backup/archive"
)

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
