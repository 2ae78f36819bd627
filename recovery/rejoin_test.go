package recovery

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/pkg/v3/types"

	"etcd-wrapper/recovery/peers"
)

// Validating a large database takes longer than a quorum without data waits.
func TestMemberReportsItsDataDuringValidation(t *testing.T) {
	w, o := ofThree(t)
	heard := false
	_, err := w.recovery().prepare(t.Context(), w.member, func(context.Context) error { heard = o.told; return nil })
	require.NoError(t, err)
	assert.True(t, heard)
}

// fakePeers are the two other members of a cluster.
type fakePeers struct {
	listing  PeerState
	cluster  uint64
	id       string  // cluster ID reported by the peers; empty if they report none
	of       int     // generation reported by the peers
	other    uint64  // ID of the peer that responds
	own      uint64  // ID of this member in the peers' list; 0 for an ID that is not on its volume
	inTheWay []error // errors that block a replacement, one per response
	outdated error
	silent   int    // number of responses without a quorum
	fail     string // whether the next change fails "before" or "after" it is made
	changes  []string
	told     bool // whether this member published its state before its first query
	holds    peers.Volume
	run      int                        // number of running peers
	reach    int64                      // highest revision of the running peers
	noQuorum bool                       // whether too many members are waiting without data
	older    int                        // number of peers that are not running etcd and have older data than the store
	voters   int                        // number of voters in the volume's cluster according to a peer
	hears    func(peers.Self) PeerState // returns the response to this member's report; nil if the response is constant
	size     int64                      // size of the peers' databases
	late     bool                       // whether a peer has not uploaded the data that only its volume has
	brought  bool                       // value of Uploaded in this member's last report
}

func (o *fakePeers) Query(_ context.Context, self peers.Self) peers.Survey {
	o.brought = self.Uploaded
	if o.holds = self.Volume; o.hears != nil {
		o.listing = o.hears(self)
	}
	c := peers.Survey{Membership: o.listing, Running: o.run, Revision: o.reach, NoQuorumElsewhere: o.noQuorum, Older: o.older, Voters: o.voters, Uploaded: !o.late}
	switch {
	case o.listing == peers.Unknown, o.listing == peers.Gone:
		c.Missing = errors.New("m-0 does not answer")
		return c
	case o.silent > 0:
		o.silent--
		c.Membership, c.Missing = peers.Claimed, errors.New("m-1 does not answer")
		return c
	}
	c.Cluster, c.ID, c.Generation, c.Size = strconv.FormatUint(o.cluster, 16), o.id, o.of, o.size
	c.Own = peers.Member{ID: types.ID(cmp.Or(o.own, 7))}
	c.Own.PeerURLs = []string{"http://m-2"}
	other := peers.Member{ID: types.ID(cmp.Or(o.other, 1))}
	other.Name, other.PeerURLs = "m-0", []string{"http://m-0"}
	c.Members = []peers.Member{other, c.Own}
	if self.MemberID != 0 {
		c.Outdated = o.outdated
	}
	if len(o.inTheWay) > 0 {
		c.Blocked, o.inTheWay = o.inTheWay[0], o.inTheWay[1:]
	}
	return c
}

func (o *fakePeers) Publish(self peers.Self) { o.told, o.holds = true, self.Volume }

func (o *fakePeers) Remove(context.Context, *peers.Survey) error {
	return o.change("removed", peers.Unlisted)
}

func (o *fakePeers) Add(context.Context, *peers.Survey) error { return o.change("added", peers.Added) }

func (o *fakePeers) change(what string, to PeerState) error {
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

// ofThree returns a member of a three-member cluster, and its peers.
func ofThree(t *testing.T) (*world, *fakePeers) {
	t.Helper()
	w := newFilledWorld(t)
	o := &fakePeers{listing: peers.Started, cluster: positionOf(t, w.member.DataDir).ClusterID}
	w.member.Alone, w.member.Name, w.member.Peers = false, "m-2", o
	return w, o
}
