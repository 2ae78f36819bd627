package recovery

import (
	"cmp"
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

// inStore is what the store has.
type inStore struct {
	first       archive.Cluster      // whose it is; the zero value if nobody is known to have founded it
	generations []archive.Generation // in order
	newest      archive.Generation   // the last of them; the zero value if there is none
	head        archive.Head         // of the newest one
	reserved    archive.Reservation  // no revision above it was ever handed out, as far as the store knows; the zero value if it does not
	path        archive.Path
	notKept     error // why there is no path
	adopted     bool  // a person has named the store's cluster, and that was not done before
}

// owner is whose the store is by its own word.
func (s inStore) owner() string { return cmp.Or(s.newest.Owner, s.first.Owner) }

// etcd is what etcd calls its cluster.
func (s inStore) etcd() string { return cmp.Or(s.newest.Etcd, s.first.Etcd) }

// born is what a store has to tell whose it is. The manifest is the oldest object, and the first that a bucket lets go of which keeps
// nothing for ever, and it may decay: the first generation names the cluster as well.
func (r *run) born(ctx context.Context) (s inStore, err error) {
	first, why := r.options.Archive.Cluster(ctx)
	if why != nil && !errors.Is(why, store.ErrNotFound) && !notVerified(why) {
		return s, why
	}
	generations, err := r.options.Archive.Generations(ctx)
	switch {
	case err != nil:
		return s, err
	case why == nil:
	case len(generations) > 0:
		first = archive.Cluster{Cluster: generations[0].Cluster, Owner: generations[0].Owner, Etcd: generations[0].Etcd}
	case notVerified(why):
		return s, why
	}
	s = inStore{first: first, generations: generations, newest: lastOf(generations)}
	s.adopted = r.adopts(s)
	return s, nil
}

// lastOf is the last of a store's generations; the zero value if there is none.
func lastOf(generations []archive.Generation) (last archive.Generation) {
	if len(generations) > 0 {
		last = generations[len(generations)-1]
	}
	return last
}

// unnamed is what a store has that does not tell whose it is. What there is of backups is no reason to begin anew.
func (r *run) unnamed(ctx context.Context) (inStore, StoreState, error) {
	remains, err := r.options.Archive.Remains(ctx)
	if err != nil || remains == "" || r.core.Facts.Volume == VolumeValid {
		return inStore{}, StoreEmpty, err
	}
	return inStore{notKept: fmt.Errorf("%s has objects below %s, and neither cluster.json nor a generation.json, which say whose they are: "+
		"put these back, as from an earlier version of the bucket, or name another place", r.options.Archive, remains)}, StoreOurs, nil
}

// owner tells whose a store is that somebody has founded. Data have the id of their cluster with them. What has none, and no data of use,
// goes by the owner's name.
func (r *run) owner(ctx context.Context, now inStore) (owner StoreState, err error) {
	holdsData := r.core.Facts.Volume == VolumeValid && r.stands.ClusterID != 0
	switch is := r.identity; {
	case holdsData && is.Cluster == now.first.Cluster:
		owner = StoreOurs
		if now.newest.Number > is.Generation && now.newest.Parent == 0 { // by an adoption, perhaps of these data
			_, err = r.named(ctx, now)
		}
	case holdsData && !is.Known():
		owner, err = r.unidentified(ctx, now)
	case is.Known() && is.Cluster != now.first.Cluster && r.core.Facts.Volume != VolumeEmpty:
		owner = StoreOthers
	case now.owner() != r.owns():
		owner = StoreNotOwned
	case now.newest.Number == 0:
		owner = StoreFounded
	default:
		owner = StoreOurs
	}
	switch {
	case err != nil || r.asked && holdsData || !now.adopted:
		return owner, err
	case holdsData && (owner != StoreOurs || r.member.Alone):
		return StoreAdopted, nil
	case !holdsData:
		return StoreOurs, nil
	}
	return owner, nil
}

// owns is what this member's cluster is called.
func (r *run) owns() string { return r.options.Owner(r.member.Token) }

// adopts tells whether a person has named the store's cluster, and that was not done before. The flag stays in its place: an owner takes a
// cluster once, and once more for each generation that is named as the one to end.
func (r *run) adopts(s inStore) bool {
	id, number, named := strings.Cut(r.options.Adopt, "/")
	switch {
	case id == "" || id != s.first.Cluster:
		return false
	case named:
		return s.newest.Number > 0 && number == strconv.Itoa(s.newest.Number)
	default:
		return !slices.Contains(archive.Adoptions(s.generations), r.owns())
	}
}

// adoptions are the owners that have adopted the store once this one has, if that is asked for.
func (r *run) adoptions(s inStore) []string {
	before := archive.Adoptions(s.generations)
	if !s.adopted || slices.Contains(before, r.owns()) {
		return before
	}
	return append(before, r.owns())
}

// unidentified is whose a store is for a valid volume that names no cluster. It is its own if the members that run have told so, or if
// this cluster has founded it, or adopted it, and has kept nothing in it yet.
func (r *run) unidentified(ctx context.Context, now inStore) (StoreState, error) {
	if r.survey.Cluster == hex(r.stands.ClusterID) && r.survey.ID == now.first.Cluster {
		r.identity = archive.Identity{Cluster: now.first.Cluster, Generation: r.survey.Generation}
		return StoreOurs, nil
	}
	if named, err := r.named(ctx, now); !named {
		return StoreUnclaimed, err
	}
	return StoreOurs, nil
}

// named has a volume go along with the newest generation, or the cluster, that its own cluster has begun and could not note: it is that one's
// by etcd's label, and nothing is kept there yet.
func (r *run) named(ctx context.Context, now inStore) (bool, error) {
	if now.etcd() != hex(r.stands.ClusterID) || now.owner() != r.owns() {
		return false, nil
	}
	if now.newest.Number > 0 {
		head, err := r.options.Archive.Head(ctx, now.newest.Number)
		if archive.NotVerified(err) {
			return false, nil
		}
		if err != nil || !head.Empty() || !head.PastEnd.IsZero() || head.Ending() != nil {
			return false, err
		}
	}
	r.identity = now.identity()
	return true, nil
}

// identity is that of data which go on in the store's newest generation.
func (s inStore) identity() archive.Identity {
	return archive.Identity{Cluster: s.first.Cluster, Generation: max(1, s.newest.Number)}
}

// adoptStore ends the newest generation and begins one for the data of the volume. Whatever is in the way, the store is asked again.
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
	if s.generations, err = r.options.Archive.Generations(ctx); err != nil {
		return err
	}
	s.newest = lastOf(s.generations)
	wanted := archive.Generation{
		Number: s.newest.Number + 1, Cluster: s.first.Cluster, Owner: r.owns(), Etcd: hex(r.stands.ClusterID), Session: r.session, Created: r.now(),
		Restored: archive.Restores(s.generations), Adopted: r.adoptions(s),
	}
	if s.newest.Number > 0 {
		if err := r.end(ctx, s.newest, wanted, format.Position{}); err != nil {
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
	is, valid := r.identity, r.core.Facts.Volume == VolumeValid
	var err error
	switch {
	case r.decision.Result == FoundCluster, valid && !is.Known() && r.core.Facts.Told == StoreEmpty:
		is, err = r.foundCluster()
	case !valid && r.survey.ID != "":
		is = archive.Identity{Cluster: r.survey.ID, Generation: r.survey.Generation}
	case !valid && r.decision.Result != RestoreData: // it gets its data from others that tell none
		ctx, cancel := context.WithTimeout(r.ctx, brief)
		defer cancel()
		var there inStore
		is = archive.Identity{}
		if there, err = r.born(ctx); err == nil && there.first.Cluster != "" {
			is = there.identity()
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
