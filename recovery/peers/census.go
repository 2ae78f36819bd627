package peers

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
)

// Listing is how the other members have this one in their list.
type Listing string

// The listings. Only those that a quorum of equal answers stands behind are acted upon.
const (
	Unknown  Listing = "unknown"  // no quorum answers, and nobody knows of a cluster that was more than configured
	Claimed  Listing = "claimed"  // somebody does, and no quorum of equal answers stands behind it
	Founding Listing = "founding" // no cluster is known of, all are here, and nobody has data
	Partial  Listing = "partial"  // no cluster is known of, and nobody has data; some run already, as far as they know for the first time
	Gone     Listing = "gone"     // no cluster is known of, all are here, and what some have is of no use
	Asking   Listing = "asking"   // no cluster is known of, all are here and ask for the same restore
	Expected Listing = "expected" // it has never started, in a cluster that is being founded with it
	Added    Listing = "added"    // it has never started, and was added to a cluster that runs
	Started  Listing = "started"  // it was there before
	Unlisted Listing = "unlisted" // the cluster does not have it
)

// Member is one member of a cluster, as another one tells of it.
type Member = membership.Member

// Self is the member that asks, with what its volume tells of it.
type Self struct {
	ClusterID, MemberID uint64 // the volume's; 0 if it has none
	Voters              int    // of the cluster, as the volume knows them
	Index               uint64 // of the last entry in its log
	Holds               Holds  // what is told to others while no etcd runs here
	Restore             string // the id of the restore that is asked for here; empty if none is
	Brought             bool   // the store has what only the volume had, as far as it can be brought there
}

// Census is what the others have answered.
type Census struct {
	Listing Listing
	Cluster string // etcd's id of the cluster, hexadecimal; empty without a quorum
	// ID is the id that the cluster has in its store, as those tell that run it with one; empty if none does. Generation goes with it.
	ID         string
	Generation int
	Members    []Member // of the cluster, this one included
	Own        Member   // this one, as they have it
	// Outdated says why the data on the volume are not those that this member had last; nil if nothing speaks against them.
	Outdated error
	// InTheWay says what keeps this member from being replaced, or added, now; nil if nothing does.
	InTheWay error
	// Brought says that of the others that run no etcd all have brought into the store what only their volumes had.
	Brought bool
	// Silent says who gave no answer, or one that is in the way of a decision, and why; nil if nobody did.
	Silent error
	// Run is how many of the others run an etcd of the volume's cluster, and Voters how many voting members that has, as they tell.
	Run, Voters int
	// Reach is the highest revision that one of those that run is known to have, and Grows says that somebody who has no data waits for
	// this member, and nobody who has.
	Reach int64
	Grows bool
	// Older is how many run none, and have data that a store has more than.
	Older int
}

// InitialCluster is the list of members as etcd's configuration has it, for the member of that name.
func (c *Census) InitialCluster(name string) string {
	var pairs []string
	for _, m := range c.Members {
		called := m.Name
		switch {
		case m.ID == c.Own.ID:
			called = name
		case called == "":
			called = m.ID.String()
		}
		for _, url := range m.PeerURLs {
			pairs = append(pairs, called+"="+url)
		}
	}
	return strings.Join(pairs, ",")
}

// answer is what one member has told.
type answer struct {
	name    string // that it is configured with
	url     string // where it was asked
	cluster string
	members []Member
}

// content is the same for answers that are the same.
func (a *answer) content() string {
	text, _ := json.Marshal(a.members) // it was made of JSON
	return a.cluster + string(text)
}

// voter tells whether the one that answered has a vote, by its own list.
func (a *answer) voter() bool {
	return slices.ContainsFunc(a.members, func(m Member) bool {
		return !m.IsLearner && a.is(m)
	})
}

// is tells whether the member is the one that answered.
func (a *answer) is(m Member) bool { return m.Name == a.name || slices.Contains(m.PeerURLs, a.url) }

// decided is the answer that a quorum of the cluster that it tells of has given, and who gave it; nil if there is none, or
// if two contradict each other.
func (p *Peers) decided(answers []*answer) (agreed *answer, by []*answer) {
	groups := map[string][]*answer{}
	for _, a := range answers {
		if a.voter() {
			groups[a.content()] = append(groups[a.content()], a)
		}
	}
	for _, group := range groups {
		if len(group) < p.enough(group[0].members) {
			continue
		}
		if agreed != nil {
			return nil, nil
		}
		agreed, by = group[0], group
	}
	return agreed, by
}

// enough is how many have to say the same: a quorum or, where this member is one of two voters, the other one. That one has
// everything that both ever agreed on.
func (p *Peers) enough(members []Member) int {
	count := len(voters(members))
	if own, listed := p.own(members); listed && !own.IsLearner && count == 2 {
		return 1
	}
	return count/2 + 1
}

func voters(members []Member) (found []Member) {
	for _, m := range members {
		if !m.IsLearner {
			found = append(found, m)
		}
	}
	return found
}

// own is this member's entry in a list: the one that has its name or, as a member that never started has told none, one of its
// peer URLs.
func (p *Peers) own(members []Member) (own Member, listed bool) {
	for _, m := range members {
		if m.Name == p.name || m.Name == "" && slices.ContainsFunc(m.PeerURLs, p.isOwnURL) {
			return m, true
		}
	}
	at := slices.IndexFunc(members, func(m Member) bool { return slices.ContainsFunc(m.PeerURLs, p.isOwnURL) })
	if at < 0 {
		return Member{}, false
	}
	return members[at], true
}

func (p *Peers) isOwnURL(url string) bool { return slices.Contains(p.urls, url) }

// judge makes a census of answers.
func (p *Peers) judge(answers []*answer) (c Census, by []*answer) {
	agreed, by := p.decided(answers)
	heard := map[Listing]bool{}
	for _, a := range answers {
		heard[p.listing(a)] = true
	}
	delete(heard, Expected)
	if agreed == nil {
		c.Listing = Unknown
		if len(heard) > 0 {
			c.Listing = Claimed
		}
		return c, nil
	}
	own, _ := p.own(agreed.members)
	c = Census{Listing: p.listing(agreed), Cluster: agreed.cluster, Members: agreed.members, Own: own}
	if heard[Started] && c.Listing != Started || c.Listing == Expected && len(heard) > 0 {
		c.Listing = Claimed // who has forgotten this member is not believed against one who has not
	}
	return c, by
}

// listing is how one answer has this member.
func (p *Peers) listing(a *answer) Listing {
	own, listed := p.own(a.members)
	switch {
	case !listed:
		return Unlisted
	case started(own):
		return Started
	case uint64(own.ID) == p.founding:
		return Expected
	default:
		return Added
	}
}

// started tells whether a member has ever served: it tells its client URLs then.
func started(m Member) bool { return len(m.ClientURLs) > 0 }

// called is what people know a member by.
func called(m Member) string {
	switch {
	case m.Name != "":
		return m.Name
	case len(m.PeerURLs) > 0:
		return strings.Join(m.PeerURLs, ",")
	default:
		return m.ID.String()
	}
}

// unfinished names a member, other than this one, that is about to join; only one at a time may.
func (p *Peers) unfinished(c *Census) error {
	for _, m := range c.Members {
		switch {
		case m.ID == c.Own.ID && c.Listing != Unlisted:
		case m.IsLearner:
			return fmt.Errorf("%s is a learner that has no vote yet, and members join one at a time; see that it catches up, or remove it with etcdctl member remove", called(m))
		case !started(m):
			return fmt.Errorf("%s was added and has not started yet, and members join one at a time; start it, or remove it with etcdctl member remove", called(m))
		}
	}
	return nil
}
