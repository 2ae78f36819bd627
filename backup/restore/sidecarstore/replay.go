package sidecarstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
)

// Base is the database of a full snapshot to which rows are added.
type Base struct {
	Revision int64 // last revision in the snapshot; may be later than the revision in the name
	// Row returns the row whose key starts with the 17 bytes of revision, or nil if the row does not exist (for
	// example, after a compaction). Rows that both the base and the deltas contain are compared. If they differ, the
	// sidecar created the full snapshot by compacting other backups, and leases that expired during the compaction
	// caused additional changes. Row may be nil.
	Row func(revision []byte) (key, value []byte)
}

// Rows yields the rows to add to the database of full, in order, to reach the target. The revisions follow
// base.Revision without a gap, and each revision is complete: a transaction is never split.
//
// If reading fails, the last iteration yields the error, and all rows must be discarded, because the digest of an
// object is at its end. The error is ErrNewer, ErrConflict, restore.ErrDamaged, archive.ErrNotKept, or an error from
// the store or the context. A target time after all events selects the last revision.
//
// Rows reads at most eight deltas at a time and keeps one event of each delta in memory. Rows does not write anything
// to disk. The caller may retain the slices of a row.
func (a *Archive) Rows(ctx context.Context, full Object, base Base, to archive.Target) iter.Seq2[format.Row, error] {
	return func(yield func(format.Row, error) bool) {
		r := &replay{
			ctx: ctx, listed: a, full: full, base: base, to: to, yield: yield,
			last: base.Revision, source: full.Name, waiting: a.after(min(full.Last, base.Revision)),
		}
		defer func() {
			for _, d := range r.open {
				d.close()
			}
		}()
		if err := r.run(); err != nil && !errors.Is(err, errStopped) {
			yield(format.Row{}, err)
		}
	}
}

var errStopped = errors.New("iteration stopped by the caller")

// replay is the state of Rows. A replay reads overlapping deltas as a single sequence of revisions.
type replay struct {
	ctx    context.Context
	listed *Archive
	full   Object
	base   Base
	to     archive.Target
	yield  func(format.Row, error) bool

	last   int64  // last complete revision
	source string // object that contains the last revision

	waiting  []Object // unopened deltas, ordered by first revision
	open     []*delta // open deltas, each at its next row
	revision int64    // next revision
	same     []*delta // open deltas that contain the next revision
}

func (r *replay) run() error {
	if r.to.Revision > 0 && r.last > r.to.Revision {
		return fmt.Errorf("%w: %s ends at revision %d, after %s", ErrNewer, r.full.Name, r.last, r.to)
	}
	err := r.advance()
	if errors.Is(err, errStopped) {
		return err
	}
	for _, d := range r.open {
		if damaged := d.verify(); damaged != nil {
			return damaged // damage may have caused err
		}
	}
	return err
}

// advance reads and yields revisions until the target is reached.
func (r *replay) advance() error {
	for r.to.Revision == 0 || r.last < r.to.Revision {
		if err := r.findNext(); err != nil {
			return err
		}
		if len(r.same) == 0 {
			return r.checkEnd()
		}
		source := r.same[0].content.object.Name
		if err := r.checkGap(r.revision, source); err != nil {
			return err
		}
		if r.isPastTarget() {
			return nil
		}
		if err := r.readRevision(); err != nil {
			return err
		}
		if r.revision > r.last {
			r.last, r.source = r.revision, source
		}
	}
	return nil
}

// maxOverlap limits the number of deltas that are read at a time. With two concurrent sidecars, two or three deltas
// overlap.
const maxOverlap = 8

// findNext finds the next revision and the deltas that contain it. If there are no more rows, r.same is empty.
func (r *replay) findNext() error {
	for {
		r.revision = 0
		for _, d := range r.open {
			if r.revision == 0 || d.revision < r.revision {
				r.revision = d.revision
			}
		}
		if len(r.waiting) == 0 || r.revision > 0 && r.waiting[0].First > r.revision {
			break
		}
		if len(r.open) == maxOverlap {
			return fmt.Errorf("%w: %s and %d other deltas claim to contain revision %d", ErrConflict, r.waiting[0].Name, maxOverlap, r.revision)
		}
		opened, ended, err := r.listed.openDelta(r.ctx, r.waiting[0])
		if err != nil {
			return err
		}
		r.waiting = r.waiting[1:]
		if !ended {
			r.open = append(r.open, opened)
		}
	}
	r.same = slices.DeleteFunc(slices.Clone(r.open), func(d *delta) bool { return d.revision != r.revision })
	return nil
}

// checkGap returns an error unless the next revision follows the last one.
func (r *replay) checkGap(next int64, object string) error {
	if next <= r.last+1 {
		return nil
	}
	return fmt.Errorf("%w: revisions %d to %d are missing between %s and %s",
		archive.ErrNotKept, r.last+1, next-1, r.source, object)
}

// isPastTarget reports whether the next revision is after the target time, according to every sidecar that received
// it.
func (r *replay) isPastTarget() bool {
	return !r.to.Time.IsZero() && !slices.ContainsFunc(r.same, func(d *delta) bool { return !d.received.After(r.to.Time) })
}

// readRevision yields each row of the next revision once and advances past the revision. If the base contains the
// revision, readRevision compares the rows instead. Rows that appear in multiple deltas must be equal.
func (r *replay) readRevision() error {
	first, others := r.same[0], r.same[1:]
	name := first.content.object.Name
	for first.revision == r.revision {
		row := first.row
		for _, d := range others {
			if !bytes.Equal(d.row.Key, row.Key) || !bytes.Equal(d.row.Value, row.Value) {
				return r.conflict(name, d.content.object.Name)
			}
		}
		if r.revision <= r.last {
			if err := r.compare(row, name); err != nil {
				return err
			}
		} else if !r.yield(row, nil) {
			return errStopped
		}
		for _, d := range r.same {
			if err := r.next(d); err != nil {
				return err
			}
		}
	}
	for _, d := range others {
		if d.revision == r.revision {
			return r.conflict(name, d.content.object.Name)
		}
	}
	return nil
}

// compare returns ErrConflict if the base contains a different row with the same revision and position. A row that
// the base does not contain is not a conflict, because a compaction may have deleted the row.
func (r *replay) compare(row format.Row, name string) error {
	if r.base.Row == nil {
		return nil
	}
	key, value := r.base.Row(row.Key[:len(rowKey(0, 0))])
	if len(key) == 0 || bytes.Equal(key, row.Key) && bytes.Equal(value, row.Value) {
		return nil
	}
	return r.conflict(r.full.Name, name)
}

func (r *replay) conflict(one, another string) error {
	return fmt.Errorf("%w: revision %d differs between %s and %s", ErrConflict, r.revision, one, another)
}

// next advances a delta to its next row. At the end of the delta, next sets the revision to 0 and closes the delta.
func (r *replay) next(d *delta) error {
	ended, err := d.next()
	if err == nil && ended {
		d.revision = 0
		d.close()
		r.open = slices.DeleteFunc(r.open, func(o *delta) bool { return o == d })
	}
	return err
}

// checkEnd is called if no deltas are left before the target is reached. It returns archive.ErrNotKept if the target
// is a revision, or if a later full snapshot proves that revisions are missing.
func (r *replay) checkEnd() error {
	next := Object{Last: math.MaxInt64}
	for _, chain := range r.listed.Chains {
		if chain.Full.Last > r.last && chain.Full.Last < next.Last {
			next = chain.Full
		}
	}
	switch {
	case next.Name != "":
		return r.checkGap(next.Last+1, next.Name)
	case r.to.Revision > 0:
		return fmt.Errorf("%s is %w: the backups end at revision %d, in %s", r.to, archive.ErrNotKept, r.last, r.source)
	default:
		return nil
	}
}
