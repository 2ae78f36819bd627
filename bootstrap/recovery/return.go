package recovery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"etcd-wrapper/bootstrap/backup/archive"
	"etcd-wrapper/bootstrap/datadir"
	"etcd-wrapper/bootstrap/recovery/peers"
	"etcd-wrapper/lifecycle/machine"
)

// askThePeers finds out how the other members have this one. There is no answer that cannot be asked for again, so no step of
// a return needs to be remembered: the cluster's own list of members says how far it is.
func (r *run) askThePeers() (Event, Payload) {
	r.census = r.member.Peers.Ask(r.ctx, peers.Self{
		ClusterID: r.stands.ClusterID, MemberID: r.stands.MemberID, Members: r.stands.Members, Index: r.stands.Index,
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
		Listing: c.Listing, Outdated: c.Outdated != nil, Free: c.InTheWay == nil, AllBrought: c.Brought, Err: r.because(c),
	}
}

// holds is what the others are told of the volume.
func (r *run) holds() peers.Holds {
	switch r.core.Facts.Condition {
	case Broken:
		return peers.Ruins
	case Empty:
		return peers.Nothing
	case Valid:
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

// brief is for a question to the store that need not be answered.
const brief = 10 * time.Second

// findSuccessor finds out whether the cluster has gone on without the volume: restored from it, by what the store knows. A
// member that is told so by nobody starts, as etcd would: after a power cut all are silent.
func (r *run) findSuccessor(c *peers.Census) {
	id := hex(r.stands.ClusterID)
	switch {
	case r.stands.ClusterID == 0 || c.Cluster == id:
	case c.Cluster == "" && r.core.Facts.Condition != Valid: // it waits for the others in any case
	case c.Cluster == "":
		if generations, err := r.generations(brief); err == nil {
			c.Outdated = restoredSince(generations, id, generations[len(generations)-1].Cluster)
		}
	default:
		r.compareClusters(c, id)
	}
}

// compareClusters is for clusters of volume and peers that are not the same.
func (r *run) compareClusters(c *peers.Census, id string) {
	generations, err := r.generations(patience)
	switch since := restoredSince(generations, id, c.Cluster); {
	case err != nil && r.options.Archive != nil:
		c.Outdated = fmt.Errorf("the others are another cluster, and the store does not tell whether that was restored from this one: %w", err)
		c.InTheWay = c.Outdated
	case since != nil:
		c.Outdated = since
	default:
		c.InTheWay = fmt.Errorf("the volume is cluster %s's, and the others are cluster %s: mount this member's volume, or move the data directory away", id, c.Cluster)
	}
}

var errNoGenerations = errors.New("there is no store, or nothing in it")

// generations are those in the store, at least one.
func (r *run) generations(within time.Duration) ([]archive.Generation, error) {
	if r.options.Archive == nil {
		return nil, errNoGenerations
	}
	ctx, cancel := context.WithTimeout(r.ctx, within)
	defer cancel()
	generations, err := r.options.Archive.Generations(ctx)
	if err == nil && len(generations) == 0 {
		err = errNoGenerations
	}
	return generations, err
}

// restoredSince says that the second cluster came out of the first one; nil if that is not known.
func restoredSince(generations []archive.Generation, first, second string) error {
	was := slices.IndexFunc(generations, func(g archive.Generation) bool { return g.Cluster == first })
	is := slices.IndexFunc(generations, func(g archive.Generation) bool { return g.Cluster == second })
	if was < 0 || is <= was {
		return nil
	}
	return fmt.Errorf("they are of generation %d, and generation %d was restored since", generations[was].Number, generations[is].Number)
}

// because is what people are told beside the reason of the row.
func (r *run) because(c *peers.Census) error {
	switch {
	case c.Outdated == nil && r.verdict == nil && r.stands.MemberID != 0 && !r.asked:
		return nil
	case r.asked && c.Silent == nil:
		return nil
	case c.InTheWay != nil:
		return c.InTheWay
	case c.Silent != nil && (r.asked || c.Listing == peers.Unknown || c.Listing == peers.Claimed):
		return c.Silent
	case c.Listing == peers.Claimed:
		return errors.New("what the others say of the cluster's members is not the same")
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

// tellPeers comes before a generation is begun: whoever finds that in the store, and then calls the roll, must not hear of this
// member as one without data.
func (r *run) tellPeers() (Event, Payload) {
	if r.member.Peers != nil {
		r.member.Peers.Claim()
	}
	return "", Payload{}
}

// adoptCluster has etcd started with the members that the cluster has.
func (r *run) adoptCluster() (Event, Payload) {
	r.start = Start{InitialCluster: r.census.InitialCluster(r.member.Name)}
	return "", Payload{}
}

// barelyBegun says that a data directory is of an etcd that was killed before it had stored anything: it counts as empty.
func barelyBegun(stands datadir.Standing) bool { return stands.Members == 0 && stands.Index == 0 }

// waitsAnew says that the peers are waited for, for another reason than before.
func (r *run) waitsAnew(event Event, decision machine.Decision, reason string) bool {
	if event == PeersTold && decision.To == AskPeers || event == PeersSilent || event == Answered && decision.To == AskPeers {
		news := reason != r.waitsFor
		r.waitsFor = reason
		return news
	}
	return false
}
