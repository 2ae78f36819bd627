package recovery

import (
	"context"
	"errors"
	"strconv"
	"testing"

	"etcd-wrapper/recovery/peers"
)

// others are the other two members of a cluster, as they are asked.
type others struct {
	listing  Listing
	cluster  uint64
	id       string  // of their cluster in its store, as they tell; empty if they tell none
	of       int     // which generation
	inTheWay []error // of the next answers
	outdated error
	silent   int    // so many answers have no quorum
	fail     string // the change that fails once: "before" it is done, or "after"
	changes  []string
	told     bool // they have heard of this member before it has asked
	holds    peers.Holds
	run      int                      // how many of them run
	reach    int64                    // how far these are
	grows    bool                     // one waits that has nothing
	older    int                      // how many run none, and have data that the store has more than
	voters   int                      // of the volume's cluster, as one of them tells
	hears    func(peers.Self) Listing // how they answer to what they hear; nil for always the same
	late     bool                     // one of them has not brought what only its volume has
	brought  bool                     // what this member was heard to say of itself last
}

func (o *others) Ask(_ context.Context, self peers.Self) peers.Census {
	o.brought = self.Brought
	if o.holds = self.Holds; o.hears != nil {
		o.listing = o.hears(self)
	}
	if o.listing == peers.Unknown || o.listing == peers.Gone {
		return peers.Census{Listing: o.listing, Silent: errors.New("m-0 does not answer"), Run: o.run, Reach: o.reach, Grows: o.grows, Older: o.older, Voters: o.voters, Brought: !o.late}
	}
	if o.silent > 0 {
		o.silent--
		return peers.Census{Listing: peers.Claimed, Silent: errors.New("m-1 does not answer"), Run: o.run, Reach: o.reach, Voters: o.voters}
	}
	c := peers.Census{Voters: o.voters, Listing: o.listing, Cluster: strconv.FormatUint(o.cluster, 16), Own: peers.Member{ID: 7}, ID: o.id, Generation: o.of}
	c.Own.PeerURLs = []string{"http://m-2"}
	other := peers.Member{ID: 1}
	other.Name, other.PeerURLs = "m-0", []string{"http://m-0"}
	c.Members = []peers.Member{other, c.Own}
	c.Brought = !o.late
	if self.MemberID != 0 {
		c.Outdated = o.outdated
	}
	if len(o.inTheWay) > 0 {
		c.InTheWay, o.inTheWay = o.inTheWay[0], o.inTheWay[1:]
	}
	return c
}

func (o *others) Tell(self peers.Self) { o.told, o.holds = true, self.Holds }

func (o *others) Remove(context.Context, *peers.Census) error {
	return o.change("removed", peers.Unlisted)
}
func (o *others) Add(context.Context, *peers.Census) error { return o.change("added", peers.Added) }

func (o *others) change(what string, to Listing) error {
	fail := o.fail
	o.fail = ""
	if fail == "before" {
		return errors.New("no quorum")
	}
	o.listing, o.changes = to, append(o.changes, what)
	if fail == "after" {
		return errors.New("no reply")
	}
	return nil
}

// ofThree is a member whose cluster has two others.
func ofThree(t *testing.T) (*world, *others) {
	t.Helper()
	w := newWorld(t)
	w.used()
	o := &others{listing: peers.Started, cluster: stand(t, w.member.DataDir).ClusterID}
	w.member.Alone, w.member.Name, w.member.Peers = false, "m-2", o
	return w, o
}

var takenIn = Start{InitialCluster: "m-0=http://m-0,m-2=http://m-2"}
