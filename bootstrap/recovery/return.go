package recovery

import (
	"errors"
	"fmt"
	"strings"

	"etcd-wrapper/bootstrap/datadir"
	"etcd-wrapper/bootstrap/recovery/peers"
)

// askThePeers finds out how the other members have this one. There is no answer that cannot be asked for again, so no step of
// a return needs to be remembered: the cluster's own list of members says how far it is.
func (r *run) askThePeers() (Event, Payload) {
	r.census = r.member.Peers.Ask(r.ctx, peers.Self{
		ClusterID: r.stands.ClusterID, MemberID: r.stands.MemberID, Members: r.stands.Members, Index: r.stands.Index,
		Holds: r.holds(),
	})
	if r.ctx.Err() != nil {
		return broke(r.ctx.Err())
	}
	c := &r.census
	if c.Cluster != "" {
		r.silent = 0
	}
	if id := hex(r.stands.ClusterID); r.stands.ClusterID != 0 && c.Cluster != "" && id != c.Cluster && r.verdict != nil {
		c.InTheWay = fmt.Errorf("the volume is cluster %s's, and the others are cluster %s: mount this member's volume, or move the data directory away", id, c.Cluster)
	}
	return PeersTold, Payload{
		Listing: c.Listing, Outdated: c.Outdated != nil, Free: c.InTheWay == nil, Err: r.because(c),
	}
}

// holds is what the others are told of the volume.
func (r *run) holds() peers.Holds {
	switch facts := r.core.Facts; {
	case facts.Condition == Broken:
		return peers.Ruins
	case facts.Condition == Empty:
		return peers.Nothing
	default:
		return peers.Data
	}
}

// because is what people are told beside the reason of the row.
func (r *run) because(c *peers.Census) error {
	switch {
	case c.Listing == peers.Started && c.Outdated == nil && r.verdict == nil && r.stands.MemberID != 0:
		return nil
	case c.InTheWay != nil:
		return c.InTheWay
	case c.Silent != nil && (c.Listing == peers.Unknown || c.Listing == peers.Claimed):
		return c.Silent
	case c.Listing == peers.Claimed:
		return errors.New("the others disagree about the cluster's members")
	case c.Outdated != nil:
		return c.Outdated
	default:
		return r.verdict
	}
}

// tellReturn says what is of no use any more, and from whom the data come.
func (r *run) tellReturn() (Event, Payload) {
	volume := "the volume is empty"
	switch {
	case r.verdict != nil && r.core.Facts.Remains:
		volume = "the volume is broken: " + r.verdict.Error()
	case r.census.Outdated != nil:
		volume = "the volume was put back to an older state: " + r.census.Outdated.Error()
	}
	var from []string
	for _, m := range r.census.Members {
		if m.ID != r.census.Own.ID && m.Name != "" {
			from = append(from, m.Name)
		}
	}
	told := fmt.Sprintf("%s; the member gets its data from %s of cluster %s, and has no vote until it has all of them",
		volume, strings.Join(from, " and "), r.census.Cluster)
	news := r.Progress().Loss == ""
	if news {
		r.tell(func(p *Progress) { p.Loss = told })
		r.options.Log.Warn().Msg("recovery: " + told)
	}
	return "", Payload{}
}

// removeMember has the cluster forget the identity whose log was lost.
func (r *run) removeMember() (Event, Payload) {
	if err := r.member.Peers.Remove(r.ctx, &r.census); err != nil {
		return PeersSilent, Payload{Err: err}
	}
	r.options.Log.Info().Str("member", r.census.Own.ID.String()).Msg("recovery: this member's old identity is out of the cluster")
	return Left, Payload{}
}

func (r *run) addLearner() (Event, Payload) {
	if err := r.member.Peers.Add(r.ctx, &r.census); err != nil {
		return PeersSilent, Payload{Err: err}
	}
	r.options.Log.Info().Msg("recovery: the cluster has taken this member in as a learner")
	return Entered, Payload{}
}

// adoptCluster has etcd started with the members that the cluster has.
func (r *run) adoptCluster() (Event, Payload) {
	r.start = Start{InitialCluster: r.census.InitialCluster(r.member.Name)}
	return "", Payload{}
}

// barelyBegun says that a data directory is of an etcd that was killed before it had stored anything: it counts as empty.
func barelyBegun(stands datadir.Standing) bool { return stands.Members == 0 && stands.Index == 0 }
