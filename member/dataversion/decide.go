package dataversion

import (
	"fmt"
	"strings"
)

// facts describe the cluster as this member knows it at one moment.
type facts struct {
	announced Version // by this member
	cluster   Version // unknown until the cluster has decided
	storage   Version
	downgrade Version // the target of the downgrade that is enabled, if one is
	leader    bool    // this member leads
	newcomers []string
}

// action is a request of this member to its cluster.
type action int

const (
	nothing         action = iota
	enable                 // the downgrade to the wanted version
	cancelDowngrade        // the downgrade
)

// The phases of the data's version, in no order: a cluster goes from each to each.
const (
	Waiting   = "waiting"     // for something that the reason names
	Lowering  = "lowering"    // etcd's downgrade was requested and has not ended
	Holding   = "holding"     // etcd's downgrade keeps the version at the wanted one
	LettingGo = "letting go"  // of the downgrade, for a member that is to join
	Rising    = "rising"      // to a wanted version that is higher
	Kept      = "kept"        // at the wanted version, and nothing is needed for it
	Foreign   = "not changed" // another user has requested something else from etcd
)

// decision is the request to make, and the state to publish.
type decision struct {
	action action
	phase  string
	reason string
}

// evaluate compares the facts with the wanted version. Every member cancels a downgrade for a newcomer, because the
// leader may be a plain etcd, which would not. Everything else is up to the leader, so that members that want
// different versions do not take turns.
func evaluate(wanted Version, f facts) decision {
	downgrading := f.downgrade != (Version{})
	switch {
	case f.cluster == (Version{}):
		return decision{nothing, Waiting, "the cluster has not decided on its version yet"}
	case downgrading && len(f.newcomers) > 0:
		return decision{cancelDowngrade, LettingGo, "etcd admits no new member during a downgrade, and " + namesOf(f.newcomers)}
	case downgrading && f.downgrade != Of3_5:
		return decision{nothing, Foreign, fmt.Sprintf("a user has requested a downgrade to %s", f.downgrade)}
	case wanted == Of3_5:
		return lower(f, downgrading)
	default:
		return raise(wanted, f, downgrading)
	}
}

func lower(f facts, downgrading bool) decision {
	switch {
	case !Of3_5.Less(f.cluster) && Of3_5.Less(f.storage):
		return decision{nothing, Lowering, "the cluster is at 3.5, and etcd is about to convert this member's storage"}
	case !Of3_5.Less(f.cluster) && downgrading:
		return decision{nothing, Holding, "a downgrade holds the cluster, until every member has been started again"}
	case !Of3_5.Less(f.cluster):
		return decision{nothing, Kept, "the cluster runs at " + f.cluster.String()}
	case downgrading:
		return decision{nothing, Lowering, "the downgrade to 3.5 was requested; etcd performs it within seconds"}
	case len(f.newcomers) > 0:
		return decision{nothing, Waiting, "the downgrade to 3.5 is not requested yet: " + namesOf(f.newcomers)}
	case !f.leader:
		return decision{nothing, Waiting, "the leader has to request the downgrade to 3.5"}
	default:
		return decision{enable, Lowering, "the cluster runs at " + f.cluster.String() + ", and 3.5 has to be able to read its data"}
	}
}

func raise(wanted Version, f facts, downgrading bool) decision {
	switch {
	case downgrading && f.leader:
		return decision{cancelDowngrade, Rising, "a downgrade holds the cluster, and " + wanted.String() + " is wanted"}
	case downgrading:
		return decision{nothing, Waiting, "the leader has to end the downgrade"}
	case f.cluster.Less(wanted):
		return decision{nothing, Waiting, "the cluster rises to " + wanted.String() + " when every member announces that"}
	default:
		return decision{nothing, Kept, "the cluster runs at " + f.cluster.String()}
	}
}

func namesOf(newcomers []string) string {
	return "this is joining: " + strings.Join(newcomers, ", ")
}
