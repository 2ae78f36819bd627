package recovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"go.etcd.io/etcd/client/pkg/v3/types"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/recovery/seed"
)

// This file founds, adopts and ends generations in the store, for the data that etcd will serve.

// adoptOwners returns the owners that have adopted the store once this one has, if that is requested.
func (b *backups) adoptOwners(seen contents) []string {
	before := archive.Adoptions(seen.Generations)
	if !seen.adopted || slices.Contains(before, b.owner()) {
		return before
	}
	return append(before, b.owner())
}

// endNamed ends the generation that the user has named before it is restored: a cluster that still writes it would
// add something during every build, which would be outdated when it is done.
func (b *backups) endNamed() (Event, Facts) {
	if !b.last.adopted || b.last.Newest().Number == 0 || b.last.Head.Ending() != nil {
		return "", Facts{}
	}
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	next := archive.Generation{Number: b.last.Next, Cluster: b.last.Cluster.Cluster, Session: b.id, Created: b.now()}
	err := archive.ErrMoved
	for errors.Is(err, archive.ErrMoved) { // until this process gets the next position, or ctx ends
		err = b.endGeneration(ctx, b.last.Newest(), next, format.Position{})
	}
	if err != nil {
		return StoreSilent, Facts{Err: err}
	}
	return b.findEnd()
}

// adopt ends the newest generation and creates one for the data of the volume. After any error the store is asked
// again.
func (b *backups) adopt() (Event, Facts) {
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	seen := b.last
	lineage, err := b.options.Archive.Lineage(ctx)
	seen.Lineage = lineage
	next := archive.Generation{
		Number: lineage.Next, Cluster: seen.Cluster.Cluster, Owner: b.owner(), Etcd: hex(b.volume.position.ClusterID), Session: b.id, Created: b.now(),
		Restored: archive.Restores(lineage.Generations), Adopted: b.adoptOwners(seen),
	}
	if err == nil && lineage.Newest().Number > 0 {
		err = b.endGeneration(ctx, lineage.Newest(), next, format.Position{})
	}
	if err == nil {
		err = b.options.Archive.BeginGeneration(ctx, next)
	}
	if err != nil {
		return StoreSilent, Facts{Err: err}
	}
	b.volume.identity = archive.Identity{Cluster: next.Cluster, Generation: next.Number}
	b.options.Log.Warn().Str("cluster", next.Cluster).Int("generation", next.Number).
		Msg("recovery: the store was adopted: a new generation starts with the data on the volume")
	return Taken, Facts{}
}

// endGeneration ends the last generation for the one that follows, so that nothing can be added to what was read of
// it, up to a position if one is given. An end by another process is completed. If nothing was read and the head cannot
// be verified, no writer can continue from it either.
func (b *backups) endGeneration(ctx context.Context, last, next archive.Generation, read format.Position) error {
	head, err := b.options.Archive.Head(ctx, last.Number)
	switch {
	case archive.NotVerified(err) && read.IsZero():
		return nil
	case err != nil:
		return err
	case !read.IsZero() && head.Position.Compare(read) > 0: // heartbeats count as well
		return archive.ErrMoved
	}
	err = b.options.Archive.End(ctx, last, head, next.Session, format.Ending{Successor: next.Number, Nonce: cmp.Or(next.Session, next.Cluster), At: next.Created})
	if errors.Is(err, archive.ErrEnded) {
		return nil
	}
	return err
}

// writeIdentity stores on the volume which cluster the data belong to, before etcd opens it. A new cluster waits for its
// ID: without one, a member would be refused once another one has founded the store. If the cluster of other data
// cannot be read now, the backup writer or the next start does it.
func (b *backups) writeIdentity(result Event) error {
	if b.options.Archive == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(b.ctx, brief)
	defer cancel()
	identity, err := b.volume.identity, error(nil)
	switch {
	case result == FoundCluster, b.isValid() && !identity.Known() && b.facts.Told == StoreEmpty:
		identity, err = b.foundCluster(ctx)
	case !b.isValid() && b.survey.ID != "":
		identity = archive.Identity{Cluster: b.survey.ID, Generation: b.survey.Generation}
	case !b.isValid() && result != RestoreData: // it gets its data from others that do not report one
		var seen contents
		identity = archive.Identity{}
		if seen, err = b.readCluster(ctx); err == nil && seen.Cluster.Cluster != "" {
			identity = seen.Identity()
		}
	}
	switch {
	case err != nil && result == FoundCluster && !errors.Is(err, store.ErrDenied):
		return fmt.Errorf("cannot create the ID of a new cluster: %w; %s", err, cmp.Or(storeWayOut(err, reachStore), "it is tried again"))
	case err != nil:
		b.options.Log.Warn().Err(err).Msg("recovery: cannot record yet which cluster the data belong to")
		return nil
	}
	b.volume.identity = identity
	before, err := archive.ReadIdentity(b.member.DataDir)
	if err != nil || before.Cluster == identity.Cluster && before.Generation == identity.Generation || !identity.Known() {
		return err
	}
	return identity.Write(b.member.DataDir)
}

// foundCluster creates the ID of a new cluster, or returns the one that another member has created.
func (b *backups) foundCluster(ctx context.Context) (archive.Identity, error) {
	etcd := b.volume.position.ClusterID
	if etcd == 0 {
		founded := b.newSeed()
		if len(b.member.Members) > 0 {
			founded.Members = b.member.Members
		}
		id, err := founded.ClusterID()
		if err != nil {
			return archive.Identity{}, err
		}
		etcd = id
	}
	manifest, err := b.options.Archive.CreateCluster(ctx, archive.Cluster{Cluster: archive.NewID(), Owner: b.owner(), Etcd: hex(etcd), Created: b.now()})
	if err == nil && (manifest.Owner != b.owner() || manifest.Etcd != hex(etcd)) {
		err = fmt.Errorf("%s was founded at the same time by %s", b.options.Archive, manifest.Owner)
	}
	return archive.Identity{Cluster: manifest.Cluster, Generation: 1}, err
}

// newSeed returns the data directory to build. Its token determines etcd's cluster ID.
func (b *backups) newSeed() seed.Seed {
	return seed.Seed{
		DataDir: b.volume.restoredDir(), Name: b.member.Name, Token: b.member.Token,
		Members: map[string]types.URLs{b.member.Name: b.member.PeerURLs}, Generation: b.last.Next,
	}
}
