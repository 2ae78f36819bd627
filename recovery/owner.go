package recovery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store"
)

// born is how a store tells whose it is; first has no cluster if nobody is known to have written it. The manifest is the oldest object,
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
		first = archive.Cluster{Cluster: generations[0].Cluster, Owner: generations[0].Owner, Etcd: generations[0].Etcd}
	case disbelieved(why):
		return first, nil, why
	}
	return first, generations, nil
}

// unnamed is what a store has that does not tell whose it is. What there is of backups is no reason to begin anew.
func (r *run) unnamed(ctx context.Context) (inStore, StoreState, error) {
	remains, err := r.options.Archive.Remains(ctx)
	if err != nil || remains == "" || r.core.Facts.Volume == VolumeValid {
		return inStore{}, StoreEmpty, err
	}
	return inStore{known: true, notKept: fmt.Errorf("%s has objects below %s, and neither cluster.json nor a generation.json, which say whose they are: "+
		"put these back, as from an earlier version of the bucket, or name another place", r.options.Archive, remains)}, StoreOurs, nil
}

// owner tells whose a store is that somebody has founded. Data have the id of their cluster with them. What has none, and no data of use,
// goes by the owner's name.
func (r *run) owner(ctx context.Context, first archive.Cluster, generations []archive.Generation) (owner StoreState, err error) {
	holdsData := r.core.Facts.Volume == VolumeValid && r.stands.ClusterID != 0
	switch is := r.identity; {
	case holdsData && is.Cluster == first.Cluster:
		owner, err = StoreOurs, r.follow(ctx, generations)
	case holdsData && !is.Known():
		owner, err = r.unidentified(ctx, first, generations)
	case is.Known() && is.Cluster != first.Cluster && r.core.Facts.Volume != VolumeEmpty:
		owner = StoreOthers
	case ownerOf(first, generations) != r.owns():
		owner = StoreNotOwned
	case len(generations) == 0:
		owner = StoreFounded
	default:
		owner = StoreOurs
	}
	switch {
	case err != nil || r.asked && holdsData || !r.adopts(first, generations):
		return owner, err
	case holdsData && (owner != StoreOurs || r.member.Alone):
		return StoreAdopted, nil
	case !holdsData:
		return StoreOurs, nil
	}
	return owner, nil
}

// ownerOf is whose a store is by its own word.
func ownerOf(first archive.Cluster, generations []archive.Generation) string {
	if len(generations) > 0 {
		return generations[len(generations)-1].Owner
	}
	return first.Owner
}

// owns is what this member's cluster is called.
func (r *run) owns() string { return r.options.Owner(r.member.Token) }

// adopts tells whether a person has named the store's cluster, and that was not done before. The flag stays in its place: an owner takes a
// cluster once, and once more for each generation that is named as the one to end.
func (r *run) adopts(first archive.Cluster, generations []archive.Generation) bool {
	id, number, named := strings.Cut(r.options.Adopt, "/")
	switch {
	case id == "" || id != first.Cluster:
		return false
	case named:
		return len(generations) > 0 && number == strconv.Itoa(generations[len(generations)-1].Number)
	default:
		return !slices.Contains(archive.Adoptions(generations), r.owns())
	}
}

// adoptions are the owners that have adopted the store once this one has.
func (r *run) adoptions(generations []archive.Generation) []string {
	before := archive.Adoptions(generations)
	if slices.Contains(before, r.owns()) {
		return before
	}
	return append(before, r.owns())
}

// unidentified is whose a store is for a valid volume that names no cluster. It is its own if the members that run have told so, or if
// this cluster has founded it, or adopted it, and has kept nothing in it yet.
func (r *run) unidentified(ctx context.Context, first archive.Cluster, generations []archive.Generation) (StoreState, error) {
	own := hex(r.stands.ClusterID)
	if r.survey.Cluster == own && r.survey.ID == first.Cluster {
		r.identity = archive.Identity{Cluster: first.Cluster, Generation: r.survey.Generation}
		return StoreOurs, nil
	}
	begun := archive.Generation{Number: 1, Etcd: first.Etcd}
	if len(generations) > 0 {
		begun = generations[len(generations)-1]
	}
	if begun.Etcd != own || ownerOf(first, generations) != r.owns() {
		return StoreUnclaimed, nil
	}
	none, err := r.nothingKept(ctx, generations)
	if err != nil || !none {
		return StoreUnclaimed, err
	}
	r.identity = archive.Identity{Cluster: first.Cluster, Generation: begun.Number}
	return StoreOurs, nil
}

// follow has a volume go along with the generation that its own cluster has begun by an adoption, and could not note.
func (r *run) follow(ctx context.Context, generations []archive.Generation) error {
	if len(generations) == 0 {
		return nil
	}
	newest := generations[len(generations)-1]
	if newest.Number <= r.identity.Generation || newest.Parent != 0 || newest.Etcd != hex(r.stands.ClusterID) || newest.Owner != r.owns() {
		return nil
	}
	none, err := r.nothingKept(ctx, generations)
	if err == nil && none {
		r.identity = archive.Identity{Cluster: newest.Cluster, Generation: newest.Number}
	}
	return err
}

// nothingKept tells whether the newest generation has nothing yet.
func (r *run) nothingKept(ctx context.Context, generations []archive.Generation) (bool, error) {
	if len(generations) == 0 {
		return true, nil
	}
	head, err := r.options.Archive.Head(ctx, generations[len(generations)-1].Number)
	if archive.NotVerified(err) {
		return false, nil
	}
	return head.Empty() && head.PastEnd.IsZero() && head.Ending() == nil, err
}

// adoptStore ends the newest generation and begins one for the data of the volume. Whatever is in the way, the store is asked again.
func (r *run) adoptStore() (Event, Facts) {
	ctx, cancel := context.WithTimeout(r.ctx, patience)
	defer cancel()
	generations, err := r.options.Archive.Generations(ctx)
	if err == nil {
		err = r.adopt(ctx, generations)
	}
	if err != nil {
		return StoreSilent, Facts{Err: err}
	}
	r.options.Log.Warn().Str("cluster", r.identity.Cluster).Int("generation", r.identity.Generation).
		Msg("recovery: the store is adopted: a generation begins with the data on the volume")
	return Taken, Facts{}
}

func (r *run) adopt(ctx context.Context, generations []archive.Generation) error {
	wanted := archive.Generation{
		Number: 1, Cluster: r.kept.first.Cluster, Owner: r.owns(), Etcd: hex(r.stands.ClusterID), Session: r.session, Created: r.now(),
		Restored: archive.Restores(generations), Adopted: r.adoptions(generations),
	}
	if len(generations) > 0 {
		newest := generations[len(generations)-1]
		wanted.Number = newest.Number + 1
		head, err := r.options.Archive.Head(ctx, newest.Number)
		if err == nil {
			err = r.options.Archive.End(ctx, newest, head, r.session, format.Ending{Successor: wanted.Number, Nonce: r.session, At: wanted.Created})
		}
		if err != nil && !errors.Is(err, archive.ErrEnded) && !archive.NotVerified(err) {
			return err
		}
	}
	if err := r.options.Archive.BeginGeneration(ctx, wanted); err != nil {
		return err
	}
	r.identity = archive.Identity{Cluster: wanted.Cluster, Generation: wanted.Number}
	return nil
}

// identify has the volume remember whose it is before etcd opens it. A new cluster waits for its name: a member without one would be
// refused once another has founded the store. Where nobody may found it, and of other volumes, what cannot be found out now the writer of
// the backups finds out where the store is empty; otherwise the next start does.
func (r *run) identify() error {
	if r.options.Archive == nil {
		return nil
	}
	is := r.identity
	valid := r.core.Facts.Volume == VolumeValid
	var err error
	switch {
	case r.decision.Result == FoundCluster, valid && !is.Known() && r.core.Facts.Told == StoreEmpty:
		is, err = r.foundCluster()
	case !valid && r.survey.ID != "":
		is = archive.Identity{Cluster: r.survey.ID, Generation: r.survey.Generation}
	case !valid && r.decision.Result != RestoreData:
		is, err = r.joined()
	}
	if err != nil && r.decision.Result == FoundCluster && !errors.Is(err, store.ErrDenied) {
		return fmt.Errorf("a new cluster has no name yet: %w; %s", err, reachStore)
	}
	if err != nil {
		r.options.Log.Warn().Err(err).Msg("recovery: the volume does not name its cluster yet")
		return nil
	}
	r.identity = is
	if before, err := archive.ReadIdentity(r.member.DataDir); err != nil || before.Cluster == is.Cluster && before.Generation == is.Generation || !is.Known() {
		return err
	}
	return is.Write(r.member.DataDir)
}

// foundCluster gives a new cluster its id, or tells which one another member has given it.
func (r *run) foundCluster() (archive.Identity, error) {
	ctx, cancel := context.WithTimeout(r.ctx, brief)
	defer cancel()
	etcd := hex(r.stands.ClusterID)
	if r.stands.ClusterID == 0 {
		founded := r.seed()
		if len(r.member.Members) > 0 {
			founded.Members = r.member.Members
		}
		id, err := founded.ClusterID()
		if err != nil {
			return archive.Identity{}, err
		}
		etcd = hex(id)
	}
	there, err := r.options.Archive.FoundCluster(ctx, archive.Cluster{Cluster: archive.NewID(), Owner: r.owns(), Etcd: etcd, Created: r.now()})
	if err == nil && (there.Owner != r.owns() || there.Etcd != etcd) {
		err = fmt.Errorf("%s was founded at this moment by %s", r.options.Archive, there.Owner)
	}
	return archive.Identity{Cluster: there.Cluster, Generation: 1}, err
}

// joined is the identity of a member that gets its data from others that tell none.
func (r *run) joined() (is archive.Identity, err error) {
	ctx, cancel := context.WithTimeout(r.ctx, brief)
	defer cancel()
	first, generations, err := r.born(ctx)
	if err != nil || first.Cluster == "" {
		return is, err
	}
	is = archive.Identity{Cluster: first.Cluster, Generation: 1}
	if len(generations) > 0 {
		is.Generation = generations[len(generations)-1].Number
	}
	return is, nil
}

// placeOf is where a cluster of etcd's stands in the history of a store, by its label; -1 if it is not there.
func placeOf(generations []archive.Generation, cluster string) int {
	return slices.IndexFunc(generations, func(g archive.Generation) bool { return g.Etcd == cluster })
}
