package recovery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/recovery/peers"
)

// brief is for a question to the store that need not be answered.
const brief = 10 * time.Second

// findSuccessor finds out whether the cluster has gone on without the volume.
func (r *run) findSuccessor(c *peers.Census) {
	id := hex(r.stands.ClusterID)
	switch {
	case r.stands.ClusterID == 0 && c.Cluster != "":
		if err := r.notOurs(c.Cluster); err != nil && c.InTheWay == nil {
			c.InTheWay = err
		}
	case r.stands.ClusterID == 0 || c.Cluster == id && c.Listing != peers.Claimed:
	case c.Cluster != "" && c.Cluster != id:
		r.compareClusters(c, id)
	case r.core.Facts.Condition == Valid: // what is not waits for the others in any case
		c.Outdated = r.overtaken(c)
	}
}

// notOurs says that a cluster is not the one that this member belongs to, as far as its store tells: a volume that names no cluster
// does not. A store that does not answer, or has nothing, tells nothing.
func (r *run) notOurs(cluster string) error {
	if r.storeAway || cluster == r.known {
		return nil
	}
	ctx, cancel := context.WithTimeout(r.ctx, brief)
	defer cancel()
	generations, err := r.generations(ctx)
	if err != nil { // it is not asked again: the others are, every moment
		r.storeAway = true
		return nil
	}
	if r.known = generations[len(generations)-1].Cluster; r.known != cluster {
		return fmt.Errorf("the others are cluster %s, and %s is cluster %s's: their members are not changed; see that the names in initial-cluster lead to this cluster's members", cluster, r.options.Archive, r.known)
	}
	return nil
}

// compareClusters is for clusters of volume and peers that are not the same.
func (r *run) compareClusters(c *peers.Census, id string) {
	ctx, cancel := context.WithTimeout(r.ctx, patience)
	defer cancel()
	generations, err := r.generations(ctx)
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

// overtaken says why a valid volume is not opened while no quorum of the others answers; nil if it is, as etcd would: after a
// power cut all are silent. What every write needs is a quorum, and whatever the store has was acknowledged by one, so one without a
// member that has all of it must not be formed: a member that is older than the store waits for one that runs and has it.
func (r *run) overtaken(c *peers.Census) error {
	if r.stands.Voters == 1 && c.Voters > 1 {
		return fmt.Errorf("the data are of a time when the cluster had one voting member, and another one tells of %d", c.Voters)
	}
	if r.stands.Voters == 1 && r.options.Archive == nil && c.Run == 0 && !c.Grows {
		return errors.New("the data are of a time when this member alone had a vote, and initial-cluster names others: one of them has to answer first")
	}
	heard := r.older != nil // by the others, when they were asked
	if !heard {
		var err error
		if r.older, err = r.storeHasMore(); err != nil && r.stands.Voters == 1 {
			return fmt.Errorf("this member can go on alone by its log, and the store does not tell whether others went on since: %w", err)
		}
	}
	if r.older == nil || heard && r.needs > 0 && c.Reach >= r.needs && 1+c.Older < r.stands.Voters/2+1 && !errors.Is(r.older, errRestored) {
		return nil
	}
	return r.older
}

// storeHasMore says what the store knows of the cluster that the volume does not have; older is nil if that is nothing, and err
// says why the store cannot be asked.
func (r *run) storeHasMore() (older, err error) {
	ctx, cancel := context.WithTimeout(r.ctx, brief)
	defer cancel()
	if older, err = r.compareStore(ctx); err != nil && r.stands.Voters == 1 {
		return r.byNames(ctx, err)
	}
	return older, err
}

func (r *run) compareStore(ctx context.Context) (older, err error) {
	generations, err := r.generations(ctx)
	if errors.Is(err, errNoGenerations) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	id, newest := hex(r.stands.ClusterID), generations[len(generations)-1]
	if newest.Cluster != id {
		return restoredSince(generations, id, newest.Cluster), nil
	}
	head, reservation, err := r.extent(ctx, newest.Number)
	if err != nil {
		return nil, err
	}
	if r.needs = head.Revision(); reservation.Cluster == id {
		r.needs = max(r.needs, reservation.Revision-margin)
	}
	return r.olderThan(head, reservation), nil
}

// olderThan compares the volume with what its cluster has in the store.
func (r *run) olderThan(head archive.Head, reservation archive.Reservation) error {
	stands, writer := r.stands, head.Writer()
	switch reached := reservation.Revision - margin; {
	case !head.Empty() && head.Revision() > stands.HighestRevision:
		return fmt.Errorf("the data end with revision %d, and the store has revision %d", stands.HighestRevision, head.Revision())
	case reservation.Cluster == hex(stands.ClusterID) && reached > stands.HighestRevision:
		return fmt.Errorf("the data end with revision %d, and by the store the cluster had come to revision %d", stands.HighestRevision, reached)
	case stands.Voters == 1 && writer != "" && !slices.Contains(stands.Known, writer):
		return fmt.Errorf("the data are of a time when the cluster had one voting member, and member %s, which they do not know, has written to the store", writer)
	}
	return nil
}

var errNoGenerations = errors.New("there is no store, or nothing in it")

// generations are those in the store, at least one.
func (r *run) generations(ctx context.Context) ([]archive.Generation, error) {
	if r.options.Archive == nil {
		return nil, errNoGenerations
	}
	generations, err := r.options.Archive.Generations(ctx)
	if err == nil && len(generations) == 0 {
		err = errNoGenerations
	}
	return generations, err
}

// errRestored is of data whose cluster was restored since, so that another one goes on.
var errRestored = errors.New("was restored since")

// restoredSince says that the second cluster came out of the first one; nil if that is not known.
func restoredSince(generations []archive.Generation, first, second string) error {
	was, is := placeOf(generations, first), placeOf(generations, second)
	if was < 0 || is <= was {
		return nil
	}
	return fmt.Errorf("the data are of generation %d, and generation %d %w", generations[was].Number, generations[is].Number, errRestored)
}
