package recovery

import (
	"errors"
	"fmt"
	"strings"

	"etcd-wrapper/bootstrap/datadir"
	"etcd-wrapper/recovery/peers"
	"etcd-wrapper/statemachine"
)

// askThePeers finds out how the other members have this one. There is no answer that cannot be asked for again, so no step of
// a return needs to be remembered: the cluster's own list of members says how far it is.
func (r *run) askThePeers() (Event, Payload) {
	r.census = r.member.Peers.Ask(r.ctx, peers.Self{
		ClusterID: r.stands.ClusterID, MemberID: r.stands.MemberID, Voters: r.stands.Voters, Index: r.stands.Index,
		Holds: r.holds(), Restore: r.restore(), Brought: r.core.Facts.Brought || r.options.Archive == nil,
	})
	if r.ctx.Err() != nil {
		return broke(r.ctx.Err())
	}
	c := &r.census
	if c.Cluster != "" {
		r.silent = 0
	}
	r.findSuccessor(c)
	return PeersTold, Payload{
		Listing: c.Listing, Outdated: c.Outdated != nil, Free: c.InTheWay == nil, AllBrought: c.Brought, Settled: r.settled(), Err: r.because(c),
	}
}

// holds is what the others are told of the volume.
func (r *run) holds() peers.Holds {
	switch r.core.Facts.Condition {
	case Corrupt:
		return peers.Ruins
	case Empty:
		return peers.Nothing
	case Valid:
		if r.older != nil {
			return peers.Older
		}
	}
	return peers.Data
}

// restore is the id of the restore that is asked for and was not done.
func (r *run) restore() string {
	if !r.asked {
		return ""
	}
	return r.options.Request.ID
}

// because is what people are told beside the reason of the row.
func (r *run) because(c *peers.Census) error {
	switch {
	case c.Outdated == nil && r.verdict == nil && r.stands.MemberID != 0 && !r.asked:
		return nil
	case r.asked:
		return c.Silent
	case errors.Is(c.InTheWay, peers.ErrTooFew):
		return fmt.Errorf("%w; %s", c.InTheWay, r.lostForGood())
	case c.InTheWay != nil:
		return c.InTheWay
	case c.Silent != nil && (c.Listing == peers.Claimed || r.older != nil && c.Cluster == ""):
		return fmt.Errorf("%w; %s", lacking(c), r.lostForGood())
	case c.Silent != nil && c.Listing == peers.Unknown:
		return r.orWithout(lacking(c))
	case c.Outdated != nil:
		return c.Outdated
	default:
		return r.verdict
	}
}

// lacking is what speaks against the volume, and what the answers lack.
func lacking(c *peers.Census) error {
	if c.Outdated != nil {
		return fmt.Errorf("%w; %w", c.Outdated, c.Silent)
	}
	return c.Silent
}

// orWithout adds the way out where those that are waited for never come.
func (r *run) orWithout(silent error) error {
	if r.options.Archive == nil || r.core.Facts.Condition == Valid {
		return silent
	}
	return fmt.Errorf("%w; if one that had data is gone for good, take it out of initial-cluster, and start the others with --restore-to=latest and the same --restore-id", silent)
}

// lostForGood is the way out where too few members are left to bring back the rest.
func (r *run) lostForGood() string {
	if r.options.Archive != nil {
		return "what is lost for good comes back from the store: start all members with --restore-to=latest and the same --restore-id"
	}
	return "if data are lost for good, start one member that has them once with force-new-cluster: true in etcd's configuration, and the others join it"
}

// tellReturn says what is of no use any more, and from whom the data come.
func (r *run) tellReturn() (Event, Payload) {
	volume := "the volume is empty"
	switch {
	case r.verdict != nil && r.core.Facts.Remains:
		volume = "the volume is broken: " + r.verdict.Error()
	case errors.Is(r.census.Outdated, peers.ErrMixedUp):
		volume = "the data on the volume are not this member's: " + r.census.Outdated.Error()
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
	if r.Progress().Loss == "" {
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

// tellPeers comes before a generation is begun: whoever finds that in the store, and then calls the roll, must not hear of this
// member as one without data.
func (r *run) tellPeers() (Event, Payload) {
	if r.member.Peers != nil {
		r.member.Peers.Tell(peers.Self{Holds: peers.Restores, Restore: r.position.Generation.Restore, Brought: true})
	}
	return "", Payload{}
}

// adoptCluster has etcd started with the members that the cluster has.
func (r *run) adoptCluster() (Event, Payload) {
	r.start = Start{InitialCluster: r.census.InitialCluster(r.member.Name)}
	return "", Payload{}
}

// barelyBegun says that a data directory is of an etcd that was killed before it had stored anything: it counts as empty.
func barelyBegun(stands datadir.Position) bool { return stands.Members == 0 && stands.Index == 0 }

// waitsAnew says that the peers are waited for, for another reason than before.
func (r *run) waitsAnew(event Event, decision statemachine.Decision, reason string) bool {
	if event == PeersTold && decision.To == AskPeers || event == PeersSilent || event == Answered && decision.To == AskPeers {
		news := reason != r.waitsFor
		r.waitsFor = reason
		return news
	}
	return false
}
