package writer

import (
	"context"
	"errors"
	"fmt"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/relation"
	"etcd-wrapper/backup/writer/capture"
)

// recordIdentity records on the volume which cluster etcd's data belongs to, and which process last wrote backups of
// it. It runs before anything is stored, so that the record is right even if the process is killed next.
func (w *Writer) recordIdentity() {
	identity := archive.Identity{
		Cluster: w.remote.generation.Cluster, Generation: w.remote.generation.Number, Position: w.remote.stored, Session: w.identity.Session,
	}
	if w.isWriter() {
		identity.Session = w.options.Session
	}
	previous := w.identity
	if previous.Position = identity.Position; previous == identity {
		return
	}
	w.writeIdentity(identity)
}

// recordEnd records the end of the chain for the next process.
func (w *Writer) recordEnd() {
	if w.remote.generation.Number == w.identity.Generation && !w.remote.stored.IsZero() && w.remote.stored != w.identity.Position && !w.isRefused() {
		identity := w.identity
		identity.Position = w.remote.stored
		w.writeIdentity(identity)
	}
}

func (w *Writer) writeIdentity(identity archive.Identity) {
	w.identity = identity
	if err := identity.Write(w.options.DataDir); err != nil {
		w.options.Log.Warn().Err(err).Msg("backups: cannot record on the volume which cluster etcd's data belongs to")
	}
}

// isRelated reports whether the end of the chain belongs to the history of this member's data. Members of one cluster
// have the same rows. Data with the same identity and other rows is a copy of a volume or cluster that has written on
// its own; the copy whose object was stored first continues. If etcd has compacted the rows, as it may while a store
// is unreachable for long, the identity decides.
func (w *Writer) isRelated(ctx context.Context, head archive.Head) bool {
	if head.Empty() && head.PastEnd.IsZero() {
		return true
	}
	rows, err := w.compareRows(head)
	switch {
	case err != nil:
		w.failed(opInspect, "cannot compare etcd's data with its backups", err)
		return false
	case w.relation(head, rows) == relation.Copied:
		w.take(ctx, succeeded, payload{err: w.copiedError(head, fmt.Sprintf("revision %d there is not the one in etcd's data", head.Revision()))})
		return false
	}
	w.recordIdentity()
	return true
}

// relation returns how the running etcd's data relates to its generation, judged by the head of that generation only.
func (w *Writer) relation(head archive.Head, rows relation.Rows) relation.Relation {
	generation := w.remote.generation
	data := relation.Data{
		State: relation.Valid, Identity: archive.Identity{Cluster: generation.Cluster, Generation: generation.Number}, Etcd: w.options.Etcd.Identity().ClusterID,
		Owner: generation.Owner, Revision: w.revision, Rows: rows,
	}
	backups := relation.Store{
		Cluster: archive.Cluster{Cluster: generation.Cluster}, Head: head,
		Lineage: archive.Lineage{Generations: []archive.Generation{generation}},
	}
	return relation.Judge(data, backups, false).Relation
}

// compareRows compares the rows of the newest segment, or the last row before a full snapshot, with etcd's.
func (w *Writer) compareRows(head archive.Head) (relation.Rows, error) {
	compared, same, err := w.compare(head.Start)
	if err == nil && same && head.Segment != nil {
		same, err = w.hasSameRows(*head.Segment)
	}
	switch {
	case err != nil || !compared:
		return relation.NotCompared, err
	case same:
		return relation.Equal, nil
	default:
		return relation.Different, nil
	}
}

// copiedError returns the error for another copy of the data that extends the backups.
func (w *Writer) copiedError(head archive.Head, how string) error {
	cluster, number := w.remote.generation.Cluster, w.remote.generation.Number
	return fmt.Errorf("%w: %s has backups of cluster %s up to revision %d, and %s; what came into the store first goes on; "+
		"to go on with these data instead start once with --adopt=%s/%d, or point --backup-store at another place; to go on with the backups, move the data directory away",
		ErrCopied, w.options.Archive, cluster, max(0, head.Revision()), how, cluster, number)
}

// compare compares the last rows of a chain with etcd's. They cannot be compared if the chain has no digest of them,
// or if they differ and etcd may have compacted some. Every history starts without rows, so a chain without rows
// matches data without rows and says nothing about other data.
func (w *Writer) compare(end format.Start) (compared, same bool, err error) {
	if end.Last == (format.Digest{}) {
		none := end.Position.Revision == format.After(1).Revision && w.options.Etcd.Revision() == 1
		return none, none, nil
	}
	own, whole, err := w.digest(end.Position.Revision - 1)
	same = err == nil && own == end.Last
	return same || err == nil && whole, same, err
}

// hasSameRows reports whether etcd has the same rows as a segment, or has compacted them. Two copies of the data may
// happen to have an identical last revision.
func (w *Writer) hasSameRows(with format.Manifest) (bool, error) {
	chain := format.Continue(with.Before, with.Position)
	for more := true; more; {
		rows, err := w.reader.Since(capture.Request{From: chain.Revision() + 1, UpTo: with.End, Limit: chunk})
		var gap *capture.GapError
		if errors.As(err, &gap) {
			return true, nil
		}
		if err = errors.Join(err, addAll(chain, rows.Rows)); err != nil {
			return false, err
		}
		more = rows.More
	}
	own, _ := chain.End()
	return own == with.After, nil
}

// digest returns the digest of the remaining rows of a revision, and reports whether none is compacted.
func (w *Writer) digest(revision int64) (own format.Digest, whole bool, err error) {
	rows, err := w.reader.Since(capture.Request{From: revision, UpTo: revision, Limit: chunk, Left: true})
	chain := format.Continue(format.Digest{}, format.Position{Revision: revision})
	err = errors.Join(err, addAll(chain, rows.Rows))
	_, own = chain.End()
	return own, rows.Compacted < revision, err
}

func addAll(chain *format.Chain, rows []format.Row) error {
	for _, row := range rows {
		if err := chain.Add(row); err != nil {
			return err
		}
	}
	return nil
}
