package writer

import (
	"context"
	"errors"
	"fmt"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/relation"
	"etcd-wrapper/backup/store"
)

// inspection is an inspection of the store by a job: what to check, and what it found.
type inspection struct {
	Options     // of the writer
	storeView   // what is known before, and after
	canCreate   bool
	verifyOwner bool            // verify the generation as well
	advances    bool            // list the store only if advancing the head does not reach etcd's revision
	queued      format.Position // of the oldest queued segment, which the store may have; zero if there is none

	event     Event // set if the head does not matter, with an error that explains it
	successor int   // generation that continues this one, if the event is succeeded
}

// run reads what is not known yet, and always the head of the chain.
func (i inspection) run(ctx context.Context) (_ inspection, err error) {
	err = i.read(ctx)
	switch {
	case i.event != "" || i.isEndCorrupt(err):
	case errors.Is(err, archive.ErrForeign):
		i.event, err = refused, fmt.Errorf("%w; %s", err, relation.OtherCluster.WayOut())
	case errors.Is(err, archive.ErrUnsigned):
		i.event, err = refused, fmt.Errorf("%w; give it, or point --backup-store at another place", err)
	}
	return i, err
}

// isEndCorrupt reports whether an error means that the end of the chain is damaged, and not the whole store.
func (i *inspection) isEndCorrupt(err error) bool {
	return archive.NotVerified(err) && !i.head.PastEnd.IsZero()
}

func (i *inspection) read(ctx context.Context) (err error) {
	known := i.storeView
	i.head = archive.Head{}
	if i.verifyOwner && i.generation.Number != 0 {
		err = i.checkOwner(ctx)
		if errors.Is(err, store.ErrNotFound) {
			i.generation, err = archive.Generation{}, nil // to be created again
		}
	}
	if err == nil && i.generation.Number == 0 {
		err = i.resolveGeneration(ctx)
	}
	if err != nil {
		return err
	}
	i.head, err = i.findHead(ctx, known.head)
	if archive.NotVerified(err) { // no full snapshot can be verified
		past, failed := i.Archive.PastAll(ctx, i.generation.Number, i.Etcd.Revision())
		if failed != nil {
			return failed
		}
		i.head.PastEnd = past
	}
	if !i.head.Empty() && i.head.Cluster != i.generation.Cluster {
		foreign := i.head.Cluster
		i.head = archive.Head{}
		return fmt.Errorf("%s is %w: it has backups of cluster %s, and this is %s", i.Archive, archive.ErrForeign, foreign, i.generation.Cluster)
	}
	if err == nil {
		err = i.head.Damaged
	}
	if err == nil {
		err = i.verifyList(ctx, &known)
	}
	if err == nil && !i.checkpoint.IsZero() {
		if _, err = i.Archive.Manifest(ctx, i.generation.Number, i.checkpoint); archive.Unusable(err) {
			i.lost, err = i.checkpoint, nil
		}
	}
	if err == nil && i.canCreate && i.head.Unlinked != nil { // the process that stored it ended before it linked it
		err = i.Archive.Open(ctx, i.generation, *i.head.Full, i.Session)
		if errors.Is(err, archive.ErrMoved) || errors.Is(err, archive.ErrEnded) {
			err = &store.Unavailable{Cause: err} // inspect again
		}
	}
	return err
}

// findHead lists the store only if the names of the next segments do not show the end: a listing costs a dozen times
// as much.
func (i *inspection) findHead(ctx context.Context, known archive.Head) (archive.Head, error) {
	if i.advances {
		head, err := i.Archive.Advance(ctx, known)
		if err == nil && (head.Position != known.Position || head.Revision() >= i.Etcd.Revision()) {
			return head, nil
		}
	}
	return i.Archive.Head(ctx, i.generation.Number)
}

func (i *inspection) resolveGeneration(ctx context.Context) (err error) {
	if i.generation, err = i.findGeneration(ctx); err == nil {
		err = i.checkOwner(ctx)
	}
	if err != nil {
		i.generation = archive.Generation{}
		return err
	}
	i.capabilities, err = store.Probe(ctx, i.Archive.Store())
	return err
}

// findGeneration returns the generation that etcd's data belongs to. An unused store is initialized if canCreate is
// set; otherwise the result is store.ErrNotFound, as it is between the creation of the cluster manifest and the first
// generation.
func (i *inspection) findGeneration(ctx context.Context) (generation archive.Generation, err error) {
	cluster, err := i.Archive.Cluster(ctx)
	if errors.Is(err, store.ErrNotFound) && i.canCreate {
		cluster, err = i.createCluster(ctx)
	}
	if err == nil && cluster.Cluster != i.identity.Cluster {
		err = i.evaluate(relation.Store{Cluster: cluster})
	}
	if err != nil {
		return generation, err
	}
	generation, err = i.Archive.Generation(ctx, i.identity.Generation)
	if errors.Is(err, store.ErrNotFound) && i.canCreate {
		if _, err = i.Archive.Create(ctx, i.manifest(cluster.Cluster, cluster.Owner), i.identity.Generation); err == nil {
			generation, err = i.Archive.Generation(ctx, i.identity.Generation)
		}
	}
	if !errors.Is(err, store.ErrNotFound) {
		return generation, err
	}
	lineage, err := i.Archive.Lineage(ctx)
	switch {
	case err != nil:
		return generation, err
	case len(lineage.Generations) == 0:
		return generation, fmt.Errorf("%w: the first generation of cluster %s", store.ErrNotFound, cluster.Cluster)
	}
	return generation, i.evaluate(relation.Store{Cluster: cluster, Lineage: lineage})
}

// evaluate relates the data to a store that does not have its generation. It returns the refusal, and the event for it.
func (i *inspection) evaluate(kept relation.Store) error {
	data := relationData(i.Options, i.identity, relation.NotCompared)
	data.Etcd = "" // recovery decides whether data without an identity created the store
	judgment := relation.Judge(data, kept, false)
	refusal := judgment.Refusal(data, kept, i.Archive.String())
	switch judgment.Relation { //nolint:exhaustive // the generation is missing, which is inspected again
	case relation.Succeeded:
		i.event, i.successor = succeeded, kept.Newest().Number
	case relation.OtherCluster:
		i.event, refusal = refused, fmt.Errorf("%w: %w", archive.ErrForeign, refusal)
	case relation.Unclaimed:
		i.event, refusal = refused, fmt.Errorf("%w; or start the member again, as the store is reachable now", refusal)
	}
	return refusal
}

// createCluster initializes the store. The volume records the ID first: if the process is killed in between, the next
// start uses the same ID.
func (i *inspection) createCluster(ctx context.Context) (archive.Cluster, error) {
	if !i.identity.Known() {
		all, err := i.Archive.Generations(ctx)
		if err != nil {
			return archive.Cluster{}, err
		}
		if len(all) > 0 {
			return archive.Cluster{Cluster: all[0].Cluster}, nil
		}
		i.identity = archive.Identity{Cluster: archive.NewID(), Generation: 1}
		if err := i.identity.Write(i.DataDir); err != nil {
			return archive.Cluster{}, err
		}
	}
	return i.Archive.CreateCluster(ctx, i.manifest(i.identity.Cluster, i.Owner))
}

// manifest returns a cluster manifest. Another process may store its own first.
func (i *inspection) manifest(cluster, owner string) archive.Cluster {
	return archive.Cluster{Cluster: cluster, Owner: owner, Etcd: i.Etcd.Identity().ClusterID, Created: i.Now()}
}

// checkOwner verifies that the generation exists and belongs to this cluster, and that this process may add to it.
func (i *inspection) checkOwner(ctx context.Context) error {
	if err := i.Archive.CheckExists(ctx, i.generation); err != nil {
		return err
	}
	return i.Archive.MayAdd(i.generation)
}

// verifyList checks that known objects are not missing from the listing: stores may list late or lose a page, and
// must not cause a new chain or a chain that continues at an older position. Objects of another cluster count as
// gone.
func (i *inspection) verifyList(ctx context.Context, known *storeView) error {
	head, last := i.head, known.lastStored()
	if last.IsZero() {
		last = i.queued
	}
	err, object := error(store.ErrNotFound), ""
	if newest := known.head.Full; newest != nil && (head.Empty() || head.Full.Name() < newest.Name()) {
		full, failed := i.Archive.Full(ctx, i.generation.Number, newest.Name())
		err, object = i.verifyCluster(full.Cluster, failed), "full "+newest.Name()
		if head.Empty() && errors.Is(err, store.ErrNotFound) {
			return nil // segments stored since lead nowhere
		}
	}
	if archive.Unusable(err) && head.Position.Compare(last) <= 0 {
		segment, failed := i.Archive.Manifest(ctx, i.generation.Number, last)
		err, object = i.verifyCluster(segment.Cluster, failed), "segment "+last.String()
	}
	switch {
	case err == nil:
		return &store.Unavailable{Cause: fmt.Errorf("its listing ends at revision %d, although %s is there", max(0, head.Revision()), object)}
	case archive.Unusable(err):
		return nil
	default:
		return err
	}
}

// verifyCluster returns the error of reading an object, or one if it belongs to another cluster.
func (i *inspection) verifyCluster(cluster string, err error) error {
	if err == nil && cluster != i.generation.Cluster {
		return archive.ErrForeign
	}
	return err
}
