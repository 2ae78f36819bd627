package writer

import (
	"context"
	"fmt"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/relation"
	"etcd-wrapper/backup/store"
)

// storeView contains everything that a member knows about the store. An inspection works on a copy, so nothing that a
// storeView points to may be modified.
type storeView struct {
	identity      archive.Identity // identity of etcd's data, as recorded on the volume
	capabilities  store.Capabilities
	generation    archive.Generation // generation of etcd's data; its Number is 0 while it is unknown
	ownerVerified time.Time          // time when the store was last verified to belong to this cluster; zero forces a check
	head          archive.Head       // end of the chain; empty if unknown or if there is no chain
	checkpoint    format.Position    // newest segment at the last check, to be verified by the next check; zero if there is none
	checkpointAt  time.Time          // time of the last check that stored objects still exist
	lost          format.Position    // position of a segment that is missing from the store; zero if there is none
}

// checkOwner verifies that the generation exists, that it belongs to this cluster, and that this process may add to
// it.
func (v *storeView) checkOwner(ctx context.Context, in *archive.Archive) error {
	if err := in.CheckExists(ctx, v.generation); err != nil {
		return err
	}
	return in.MayAdd(v.generation)
}

// remote tracks the state of the store. While the end of the chain is known, head is the end of the chain unless
// another member has extended the chain since storedAt. Segments are stored only at head.
type remote struct {
	*driver
	storeView
	storedAt   time.Time       // time when head was last read or written
	uploadedAt time.Time       // start of the first attempt of the last successful segment upload; zero if there is none
	damagedEnd format.Position // no new chain may start before this position; zero if no end is damaged
	seen       archive.Head    // end of the chain as last read, even if this member cannot continue from it
	newerSince time.Time       // time when seen was found to be written by a later leader; zero if it was not
	aheadSince time.Time       // time when the chain was found to be ahead of this member; zero if it is not
	link       *archive.Link   // where a full snapshot that starts a chain is linked; nil if it needs no link

	successorChecked time.Time // time of the last check by findSuccessor
}

// isEndKnown reports whether the end of the chain was read recently enough to extend the chain.
func (r *remote) isEndKnown() bool {
	return r.isIn(endKnown...) && time.Since(r.storedAt) < r.pace.headValid
}

// needsVerification reports whether the next check that the store belongs to this cluster is due.
func (r *remote) needsVerification() bool { return time.Since(r.ownerVerified) >= r.pace.verifyOwner }

// lastStored returns the position of the newest known segment in the store, or zero if there is none.
func (v *storeView) lastStored() (position format.Position) {
	if v.head.Segment != nil {
		position = v.head.Segment.Position
	}
	return position
}

// storedRevision returns the last revision known to be stored. Until this process has read the store, it returns the
// revision recorded by an earlier process.
func (r *remote) storedRevision() int64 {
	if r.head.Position.IsZero() && r.storedAt.IsZero() {
		return r.identity.Position.Revision - 1
	}
	return r.head.Revision()
}

// setHead records the end of the chain. No other function confirms revisions.
func (r *remote) setHead(head archive.Head) { r.head, r.storedAt = head, time.Now() }

// reset resets the state of a store whose chain is gone. If the cluster manifest is gone as well, it is created
// again. Without a manifest, a member that loses its volume would mistake the store for an unused one.
func (r *remote) reset() {
	r.damagedEnd = r.head.Position // the new chain must not overlap with objects that still exist
	r.generation, r.head = archive.Generation{}, archive.Head{}
}

// observeLeader reports leadership changes to the state machine.
func (r *remote) observeLeader() {
	leads := r.options.Etcd.Identity().Leader && !r.hasNewerLeader()
	switch {
	case leads && !r.core.Facts.leads:
		r.take(elected, payload{})
	case !leads && r.core.Facts.leads:
		r.take(lostLeadership, payload{})
	}
}

// hasNewerLeader reports whether a later leader has written the end of the chain. Leases and users change without a
// new revision, so a member without newer rows may have older leases and users than the chain. A member that was
// paused considers itself the leader until it hears from the other members. If the member's term remains older than
// that of the chain, the data of this member was rolled back, and hasNewerLeader returns false.
func (r *remote) hasNewerLeader() bool {
	etcd := r.options.Etcd
	newer := etcd.Identity().Term < r.seen.Newest().Term && etcd.Revision() <= r.seen.Revision()
	return elapsed(&r.newerSince, newer) < r.pace.ahead && newer
}

// recordIdentity records on the volume which cluster the data belongs to, which process last wrote the backups, and
// where the chain ends. It is called at the end of Run, and also before anything is stored so that the record is
// correct even if the process is killed. While Run is active, recordIdentity does not write if only the end of the
// chain has changed.
func (r *remote) recordIdentity() {
	identity := archive.Identity{
		Cluster: r.generation.Cluster, Generation: r.generation.Number, Position: r.head.Position, Session: r.identity.Session,
	}
	if r.isWriter() {
		identity.Session = r.options.Session
	}
	previous := r.identity
	if !r.stopping {
		previous.Position = identity.Position
	}
	if previous == identity {
		return
	}
	r.identity = identity
	if err := identity.Write(r.options.DataDir); err != nil {
		r.options.Log.Warn().Err(err).Msg("backups: cannot record on the volume which cluster the data belongs to")
	}
}

// findSuccessor regularly checks whether the object at the next position ends the generation. A writer also detects
// the end of the generation when it uploads the next segment, but other members rely on findSuccessor. A later
// generation.json alone does not prove that this generation has ended.
func (r *remote) findSuccessor() {
	number, next, cluster := r.generation.Number, r.head.Position, r.identity.Cluster
	if r.link != nil {
		next = r.link.Position
	}
	if number == 0 || next.IsZero() || time.Since(r.successorChecked) < r.pace.successor {
		return
	}
	r.successorChecked = time.Now()
	r.job(checkTimeout, func(ctx context.Context) func() {
		manifest, err := r.options.Archive.Manifest(ctx, number, next)
		if err != nil || manifest.Ends == nil || manifest.Cluster != cluster {
			return func() {} // there is no object yet, or it is not the end of this generation
		}
		return func() { r.take(superseded, payload{err: r.succeededBy(manifest.Ends.Successor)}) }
	})
}

// succeededBy returns an error that names the generation which superseded this one.
func (r *remote) succeededBy(successor int) error {
	kept := r.relationStore(archive.Head{}, archive.Generation{Number: successor})
	data := relationData(r.options, r.identity, relation.NotCompared)
	return fmt.Errorf("%w; this member is at revision %d, but its backups end at revision %d", relation.Compare(data, kept, false).
		Refusal(data, kept, r.options.Archive.String()), data.Revision, max(0, r.head.Revision()))
}

// relationStore describes the store with the head of one generation.
func (r *remote) relationStore(head archive.Head, generation archive.Generation) relation.Store {
	return relation.Store{
		Cluster: archive.Cluster{Cluster: r.identity.Cluster}, Head: head, Lineage: archive.Lineage{Generations: []archive.Generation{generation}},
	}
}

// relationData describes the data of the running etcd.
func relationData(options Options, identity archive.Identity, rows relation.Rows) relation.Data {
	return relation.Data{
		State: relation.Valid, Identity: identity, Etcd: options.Etcd.Identity().ClusterID, Owner: options.Owner,
		Revision: options.Etcd.Revision(), Rows: rows,
	}
}

// checkStored regularly checks whether stored objects still exist, because a writer does not read back its uploads.
// Each check covers the segment that was newest at the previous check, the newest full snapshot if a segment was
// stored since then, and, less often, the generation.
func (r *remote) checkStored() {
	verify := r.needsVerification()
	if time.Since(r.checkpointAt) < r.pace.check && !verify {
		return
	}
	r.checkpointAt = time.Now()
	if verify {
		r.ownerVerified = time.Now()
	}
	known := r.storeView
	r.job(checkTimeout, func(ctx context.Context) func() {
		var err error
		if !known.checkpoint.IsZero() {
			_, err = r.options.Archive.Manifest(ctx, known.generation.Number, known.checkpoint)
		}
		if full := known.head.Full; err == nil && full != nil && known.lastStored() != known.checkpoint {
			_, err = r.options.Archive.Full(ctx, known.generation.Number, full.Name())
		}
		if err == nil && verify {
			err = known.checkOwner(ctx, r.options.Archive)
		}
		return func() {
			if archive.Unusable(err) {
				r.ownerVerified = time.Time{} // the store was emptied or belongs to another cluster
			}
			switch {
			case r.core.State != writing || r.checkpoint != known.checkpoint: // outdated result
			case err == nil:
				r.checkpoint = r.lastStored()
			case archive.Unusable(err):
				r.take(objectsLost, payload{})
			}
		}
	})
}

// operation is a kind of work that can fail.
