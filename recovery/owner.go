package recovery

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/relation"
	"etcd-wrapper/backup/store"
)

// An inStore is what was observed of the store.
type inStore struct {
	relation.Store
	judgment relation.Judgment
	path     archive.Path
	notKept  error // why there is no path
	adopted  bool  // the user has named the store's cluster, and that was not carried out before
}

// identified reads which cluster the store belongs to. The manifest is the oldest object, so a bucket with an expiry
// deletes it first, and it may be damaged: the first generation names the cluster as well.
func (r *run) identified(ctx context.Context) (s inStore, err error) {
	manifest, why := r.options.Archive.Cluster(ctx)
	if why != nil && !errors.Is(why, store.ErrNotFound) && !notVerified(why) {
		return s, why
	}
	lineage, err := r.options.Archive.Lineage(ctx)
	switch generations := lineage.Generations; {
	case err != nil:
		return s, err
	case why == nil:
	case len(generations) > 0:
		manifest = archive.Cluster{Cluster: generations[0].Cluster, Owner: generations[0].Owner, Etcd: generations[0].Etcd}
	case notVerified(why):
		return s, why
	}
	for _, stray := range lineage.Strays {
		r.options.Log.Warn().Err(stray).Msg("recovery: a generation that is not of the store's history is ignored")
	}
	s = inStore{Store: relation.Store{Cluster: manifest, Lineage: lineage}}
	s.adopted = s.Adopts(r.options.Adopt, r.owns())
	return s, nil
}

// observe reads what the store has, except for the backups themselves.
func (r *run) observe(ctx context.Context) (s inStore, err error) {
	if s, err = r.identified(ctx); err != nil {
		return inStore{}, err
	}
	if s.Cluster.Cluster == "" {
		s.Remains, err = r.options.Archive.Remains(ctx)
		return s, err
	}
	if s.Newest().Number == 0 {
		if err = r.options.Archive.FindUnlisted(ctx); err != nil {
			return s, err
		}
	}
	s.Head, s.Reserved, err = r.extent(ctx, s.Newest().Number)
	return s, err
}

// data describes the volume, with what the running members say.
func (r *run) data() relation.Data {
	d := relation.Data{State: relation.Damaged, Identity: r.identity, Owner: r.owns(), Revision: r.stands.HighestRevision}
	switch volume := r.core.Facts.Volume; {
	case volume == VolumeEmpty:
		d.State = relation.NoData
	case volume == VolumeValid && r.stands.ClusterID != 0:
		d.State, d.Etcd = relation.Valid, hex(r.stands.ClusterID)
		if r.survey.Cluster == d.Etcd {
			d.Peers = archive.Identity{Cluster: r.survey.ID, Generation: r.survey.Generation}
		}
	}
	return d
}

// judge returns how the volume relates to the store. A valid member of several rejoins the others instead of adopting
// its own store.
func (r *run) judge(s inStore) relation.Judgment {
	data := r.data()
	valid := data.State == relation.Valid
	j := relation.Judge(data, s.Store, s.adopted && (!r.asked || !valid))
	if j.Relation == relation.Adopted && !r.member.Alone {
		if own := relation.Judge(data, s.Store, false); storeStates[own.Relation] == StoreOurs {
			return own
		}
	}
	return j
}

// storeStates maps relations to the states of the table of decisions.
var storeStates = map[relation.Relation]StoreState{
	relation.Empty: StoreEmpty, relation.Founded: StoreFounded, relation.Unclaimed: StoreUnclaimed, relation.OtherCluster: StoreOthers,
	relation.OtherOwner: StoreNotOwned, relation.Adopted: StoreAdopted, relation.Nameless: StoreOurs, relation.Emptied: StoreOurs,
	relation.Ours: StoreOurs, relation.Same: StoreOurs, relation.Behind: StoreOurs, relation.Succeeded: StoreOurs, relation.Copied: StoreOurs,
	relation.Unnumbered: StoreOurs,
}

// owns returns the owner's name of this member's cluster.
func (r *run) owns() string { return r.options.Owner(r.member.Token) }

// adoptions returns the owners that have adopted the store once this one has, if that is requested.
func (r *run) adoptions(s inStore) []string {
	before := archive.Adoptions(s.Generations)
	if !s.adopted || slices.Contains(before, r.owns()) {
		return before
	}
	return append(before, r.owns())
}

// endAdopted ends the generation that the user has named before it is restored: a cluster that still writes it would
// add something during every build, which would be outdated when it is done.
func (r *run) endAdopted() (Event, Facts) {
	if !r.kept.adopted || r.kept.Newest().Number == 0 || r.kept.Head.Ending() != nil {
		return "", Facts{}
	}
	ctx, cancel := context.WithTimeout(r.ctx, patience)
	defer cancel()
	successor := archive.Generation{Number: r.kept.Next, Cluster: r.kept.Cluster.Cluster, Session: r.session, Created: r.now()}
	err := archive.ErrMoved
	for errors.Is(err, archive.ErrMoved) { // until this process gets the next position, or ctx ends
		err = r.end(ctx, r.kept.Newest(), successor, format.Position{})
	}
	if err != nil {
		return StoreSilent, Facts{Err: err}
	}
	return r.findEnd()
}

// adoptStore ends the newest generation and creates one for the data of the volume. After any error the store is
// asked again.
func (r *run) adoptStore() (Event, Facts) {
	ctx, cancel := context.WithTimeout(r.ctx, patience)
	defer cancel()
	if err := r.adopt(ctx); err != nil {
		return StoreSilent, Facts{Err: err}
	}
	r.options.Log.Warn().Str("cluster", r.identity.Cluster).Int("generation", r.identity.Generation).
		Msg("recovery: the store is adopted: a generation begins with the data on the volume")
	return Taken, Facts{}
}

func (r *run) adopt(ctx context.Context) (err error) {
	s := r.kept
	if s.Lineage, err = r.options.Archive.Lineage(ctx); err != nil {
		return err
	}
	wanted := archive.Generation{
		Number: s.Next, Cluster: s.Cluster.Cluster, Owner: r.owns(), Etcd: hex(r.stands.ClusterID), Session: r.session, Created: r.now(),
		Restored: archive.Restores(s.Generations), Adopted: r.adoptions(s),
	}
	if s.Newest().Number > 0 {
		if err := r.end(ctx, s.Newest(), wanted, format.Position{}); err != nil {
			return err
		}
	}
	if err := r.options.Archive.BeginGeneration(ctx, wanted); err != nil {
		return err
	}
	r.identity = archive.Identity{Cluster: wanted.Cluster, Generation: wanted.Number}
	return nil
}

// identify stores on the volume which cluster the data belong to, before etcd opens it. A new cluster waits for its
// ID: without one, a member would be refused once another one has founded the store. If the cluster of other data
// cannot be read now, the backup writer or the next start does it.
func (r *run) identify() error {
	if r.options.Archive == nil {
		return nil
	}
	is, valid := r.identity, r.core.Facts.Volume == VolumeValid
	var err error
	switch {
	case r.decision.Result == FoundCluster, valid && !is.Known() && r.core.Facts.Told == StoreEmpty:
		is, err = r.foundCluster()
	case !valid && r.survey.ID != "":
		is = archive.Identity{Cluster: r.survey.ID, Generation: r.survey.Generation}
	case !valid && r.decision.Result != RestoreData: // it gets its data from others that do not report one
		ctx, cancel := context.WithTimeout(r.ctx, brief)
		defer cancel()
		var there inStore
		is = archive.Identity{}
		if there, err = r.identified(ctx); err == nil && there.Cluster.Cluster != "" {
			is = there.Identity()
		}
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

// foundCluster creates the ID of a new cluster, or returns the one that another member has created.
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
