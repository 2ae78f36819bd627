package sidecarstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"time"
)

// Base is the database of a full snapshot, to which rows are added.
type Base struct {
	Revision int64 // the last one that it holds, which may be later than the full's name says
	// Row is the row whose key begins with revision, 17 bytes; empty if there is none, as after a compaction. With it, what both
	// the base and the deltas have is compared. A full that the sidecar made of others by compacting them may hold changes of its
	// own, by leases that ran out meanwhile; this finds them. It may be nil.
	Row func(revision []byte) (key, value []byte)
}

// Rows are to be added to the database of full, in this order, to take it to the target. Their revisions follow base.Revision
// without a gap, and are in full: a transaction isn't cut.
//
// An error comes last, and then none of the rows may be used, since an object's digest is at its end: ErrNewer, ErrDamaged,
// ErrConflict, ErrNotKept, which may be a GapError, the store's, or the context's. A target in time that is later than every event
// is the last revision.
//
// At most eight deltas are read at a time, one event of each is in memory, and nothing on the disk. The slices of a row are the
// caller's.
func (a *Archive) Rows(ctx context.Context, full Object, base Base, to Target) iter.Seq2[Row, error] {
	return func(yield func(Row, error) bool) {
		r := &replay{archive: a, base: base, to: to, yield: yield, at: base.Revision, source: full.Name, full: full}
		r.merge = merge{ctx: ctx, archive: a, waiting: a.after(min(full.Last, base.Revision))}
		defer r.merge.close()
		if err := r.run(); err != nil && !errors.Is(err, errStopped) {
			yield(Row{}, err)
		}
	}
}

var errStopped = errors.New("the caller wants no more rows")

// replay is an iteration of Rows.
type replay struct {
	archive *Archive
	merge   merge
	full    Object
	base    Base
	to      Target
	yield   func(Row, error) bool

	at     int64  // the last complete revision
	source string // the object that it is of
}

func (r *replay) run() error {
	if r.to.Revision > 0 && r.at > r.to.Revision {
		return fmt.Errorf("%w: %s holds revision %d already, which is later than %s", ErrNewer, r.full.Name, r.at, r.to)
	}
	err := r.advance()
	if errors.Is(err, errStopped) {
		return err
	}
	if broken := r.merge.verify(); broken != nil {
		return broken // whatever else was found, damage may be why
	}
	return err
}

// advance processes revisions until the target is reached.
func (r *replay) advance() error {
	for r.to.Revision == 0 || r.at < r.to.Revision {
		more, err := r.merge.next()
		if err != nil {
			return err
		}
		if !more {
			return r.ended()
		}
		if err := r.gap(r.merge.revision, r.merge.lead().content.object.Name); err != nil {
			return err
		}
		if r.beyond() {
			return nil
		}
		if err := r.pass(); err != nil {
			return err
		}
	}
	return nil
}

// gap returns an error unless the next revision follows the last one.
func (r *replay) gap(next int64, object string) error {
	if next <= r.at+1 {
		return nil
	}
	return &GapError{From: r.at + 1, To: next - 1, Before: r.source, After: object}
}

// beyond reports whether the next revision came later than the target's time.
func (r *replay) beyond() bool {
	return !r.to.Time.IsZero() && r.merge.received().After(r.to.Time)
}

// pass yields the next revision, or compares it with the base.
func (r *replay) pass() error {
	handOn := func(row Row) error {
		if !r.yield(row, nil) {
			return errStopped
		}
		return nil
	}
	if r.merge.revision <= r.at {
		handOn = r.compare
	}
	source := r.merge.lead().content.object.Name
	if err := r.merge.each(handOn); err != nil {
		return err
	}
	if r.merge.revision > r.at {
		r.at, r.source = r.merge.revision, source
	}
	return nil
}

// compare compares a row with the base's.
func (r *replay) compare(row Row) error {
	if r.base.Row == nil {
		return nil
	}
	key, value := r.base.Row(row.Key[:len(rowKey(0, 0))])
	if len(key) == 0 || string(key) == string(row.Key) && string(value) == string(row.Value) {
		return nil
	}
	return fmt.Errorf("%w: revision %d is not the same in %s and in %s", ErrConflict, r.merge.revision, r.full.Name, r.merge.name)
}

// ended is for when nothing follows and the target was not reached. If a later full shows that there were more revisions, they
// are missing.
func (r *replay) ended() error {
	next := Object{Last: math.MaxInt64}
	for _, chain := range r.archive.Chains {
		if chain.Full.Last > r.at && chain.Full.Last < next.Last {
			next = chain.Full
		}
	}
	switch {
	case next.Name != "":
		return r.gap(next.Last+1, next.Name)
	case r.to.Revision > 0:
		return fmt.Errorf("%w: %s; the last is %d, in %s", ErrNotKept, r.to, r.at, r.source)
	default:
		return nil
	}
}

// maxOverlap limits how many deltas are read in parallel. Two sidecars at a time make two or three.
const maxOverlap = 8

// merge reads overlapping deltas as one sequence of revisions.
type merge struct {
	ctx     context.Context
	archive *Archive
	waiting []Object // by first revision
	open    []*delta // each at a row that is still to come
	same    []*delta // those of open that have the next revision

	revision int64  // the next one
	name     string // of the delta that it is read from
}

// next finds the next revision. It returns false when every delta was read to its end.
func (m *merge) next() (more bool, err error) {
	for {
		m.revision = 0
		for _, d := range m.open {
			if m.revision == 0 || d.revision < m.revision {
				m.revision = d.revision
			}
		}
		if len(m.waiting) == 0 || m.revision > 0 && m.waiting[0].First > m.revision {
			break
		}
		if err := m.openNext(); err != nil {
			return false, err
		}
	}
	m.same = slices.DeleteFunc(slices.Clone(m.open), func(d *delta) bool { return d.revision != m.revision })
	return m.revision > 0, nil
}

func (m *merge) openNext() error {
	if len(m.open) == maxOverlap {
		return fmt.Errorf("%w: %s and %d other deltas have revision %d by their names", ErrConflict, m.waiting[0].Name, maxOverlap, m.revision)
	}
	opened, ended, err := m.archive.openDelta(m.ctx, m.waiting[0])
	m.waiting = m.waiting[1:]
	if err == nil && !ended {
		m.open = append(m.open, opened)
	}
	return err
}

// lead returns one of the deltas with the next revision.
func (m *merge) lead() *delta { return m.same[0] }

// received returns when the first sidecar received the next revision.
func (m *merge) received() time.Time {
	first := slices.MinFunc(m.same, func(a, b *delta) int { return a.row.Time.Compare(b.row.Time) })
	return first.row.Time
}

// each hands the rows of the next revision on, once each, and goes behind it. What several deltas have must be the same.
func (m *merge) each(handOn func(Row) error) error {
	for revision := m.revision; m.lead().revision == revision; {
		row := m.lead().row
		m.name = m.lead().content.object.Name
		for _, d := range m.same[1:] {
			if !bytes.Equal(d.row.Key, row.Key) || !bytes.Equal(d.row.Value, row.Value) {
				return m.conflict(d)
			}
		}
		if err := handOn(row); err != nil {
			return err
		}
		if err := m.advance(); err != nil {
			return err
		}
	}
	for _, d := range m.same[1:] {
		if d.revision == m.revision {
			return m.conflict(d)
		}
	}
	return nil
}

// advance takes each of those that have the next revision to its next row. One without is at revision 0.
func (m *merge) advance() error {
	for _, d := range m.same {
		ended, err := d.next()
		if err != nil {
			return err
		}
		if ended {
			d.revision = 0
			d.close()
			m.open = slices.DeleteFunc(m.open, func(o *delta) bool { return o == d })
		}
	}
	return nil
}

func (m *merge) conflict(other *delta) error {
	return fmt.Errorf("%w: revision %d is not the same in %s and in %s", ErrConflict, m.revision, m.name, other.content.object.Name)
}

// verify is for an end before the end of what is open: what was read of it must have been right.
func (m *merge) verify() error {
	for _, d := range m.open {
		if err := d.verify(); err != nil {
			return err
		}
	}
	return nil
}

func (m *merge) close() {
	for _, d := range m.open {
		d.close()
	}
}
