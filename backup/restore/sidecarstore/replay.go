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
	Revision int64 // its last revision, which may be later than in the snapshot's name
	// Row returns the row whose key starts with revision, 17 bytes, or nothing if there is none, as after a
	// compaction. It serves to compare the rows that both the base and the deltas contain. That reveals a full
	// snapshot which the sidecar made by compacting others and which has additional changes, because leases expired
	// meanwhile. Row may be nil.
	Row func(revision []byte) (key, value []byte)
}

// Rows yields the rows to add to the database of full, in order, to reach the target. Their revisions follow
// base.Revision without a gap, and each revision is complete: a transaction is never split.
//
// An error comes last. Then all rows must be discarded, because the digest of an object is at its end. It is
// ErrNewer, ErrDamaged, ErrConflict, ErrNotKept (possibly as a GapError), or an error of the store or the context. A
// target time later than every event selects the last revision.
//
// At most eight deltas are read at a time. One event of each is in memory, and nothing on disk. The caller may keep
// the slices of a row.
func (a *Archive) Rows(ctx context.Context, full Object, base Base, to Target) iter.Seq2[Row, error] {
	return func(yield func(Row, error) bool) {
		r := &rowReader{archive: a, base: base, to: to, yield: yield, at: base.Revision, source: full.Name, full: full}
		r.merge = merge{ctx: ctx, archive: a, waiting: a.after(min(full.Last, base.Revision))}
		defer r.merge.close()
		if err := r.run(); err != nil && !errors.Is(err, errStopped) {
			yield(Row{}, err)
		}
	}
}

var errStopped = errors.New("the caller wants no more rows")

// rowReader is the state of one call of Rows.
type rowReader struct {
	archive *Archive
	merge   merge
	full    Object
	base    Base
	to      Target
	yield   func(Row, error) bool

	at     int64  // the last complete revision
	source string // the object that contains it
}

func (r *rowReader) run() error {
	if r.to.Revision > 0 && r.at > r.to.Revision {
		return fmt.Errorf("%w: %s holds revision %d already, which is later than %s", ErrNewer, r.full.Name, r.at, r.to)
	}
	err := r.advance()
	if errors.Is(err, errStopped) {
		return err
	}
	if broken := r.merge.verify(); broken != nil {
		return broken // damage may have caused every other error
	}
	return err
}

// advance processes revisions until the target is reached.
func (r *rowReader) advance() error {
	for r.to.Revision == 0 || r.at < r.to.Revision {
		more, err := r.merge.next()
		if err != nil {
			return err
		}
		if !more {
			return r.checkEnd()
		}
		if err := r.checkGap(r.merge.revision, r.merge.first().content.object.Name); err != nil {
			return err
		}
		if r.isPastTarget() {
			return nil
		}
		if err := r.handleRevision(); err != nil {
			return err
		}
	}
	return nil
}

// checkGap returns an error unless the next revision follows the last one.
func (r *rowReader) checkGap(next int64, object string) error {
	if next <= r.at+1 {
		return nil
	}
	return &GapError{From: r.at + 1, To: next - 1, Before: r.source, After: object}
}

// isPastTarget reports whether the next revision is later than the target time.
func (r *rowReader) isPastTarget() bool {
	return !r.to.Time.IsZero() && r.merge.received().After(r.to.Time)
}

// handleRevision yields the rows of the next revision. If the base contains it, it compares them instead.
func (r *rowReader) handleRevision() error {
	handOn := func(row Row) error {
		if !r.yield(row, nil) {
			return errStopped
		}
		return nil
	}
	if r.merge.revision <= r.at {
		handOn = r.compare
	}
	source := r.merge.first().content.object.Name
	if err := r.merge.forEachRow(handOn); err != nil {
		return err
	}
	if r.merge.revision > r.at {
		r.at, r.source = r.merge.revision, source
	}
	return nil
}

// compare compares a row with that of the base.
func (r *rowReader) compare(row Row) error {
	if r.base.Row == nil {
		return nil
	}
	key, value := r.base.Row(row.Key[:len(rowKey(0, 0))])
	if len(key) == 0 || string(key) == string(row.Key) && string(value) == string(row.Value) {
		return nil
	}
	return fmt.Errorf("%w: revision %d is not the same in %s and in %s", ErrConflict, r.merge.revision, r.full.Name, r.merge.name)
}

// checkEnd is called when no delta is left and the target was not reached. A later full snapshot proves that
// revisions are missing.
func (r *rowReader) checkEnd() error {
	next := Object{Last: math.MaxInt64}
	for _, chain := range r.archive.Chains {
		if chain.Full.Last > r.at && chain.Full.Last < next.Last {
			next = chain.Full
		}
	}
	switch {
	case next.Name != "":
		return r.checkGap(next.Last+1, next.Name)
	case r.to.Revision > 0:
		return fmt.Errorf("%w: %s; the last is %d, in %s", ErrNotKept, r.to, r.at, r.source)
	default:
		return nil
	}
}

// maxOverlap limits the deltas that are read at a time. Two concurrent sidecars cause two or three.
const maxOverlap = 8

// merge reads overlapping deltas as one sequence of revisions.
type merge struct {
	ctx     context.Context
	archive *Archive
	waiting []Object // by first revision
	open    []*delta // each positioned at a row that is still to be processed
	same    []*delta // the deltas in open that contain the next revision

	revision int64  // the next revision
	name     string // of the delta from which it is read
}

// next finds the next revision. It returns false after the last row of every delta.
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

// first returns one of the deltas that contain the next revision.
func (m *merge) first() *delta { return m.same[0] }

// received returns the earliest time at which a sidecar received the next revision.
func (m *merge) received() time.Time {
	first := slices.MinFunc(m.same, func(a, b *delta) int { return a.row.Time.Compare(b.row.Time) })
	return first.row.Time
}

// forEachRow passes each row of the next revision to handOn once, and advances past the revision. Rows that several
// deltas contain must be equal.
func (m *merge) forEachRow(handOn func(Row) error) error {
	for revision := m.revision; m.first().revision == revision; {
		row := m.first().row
		m.name = m.first().content.object.Name
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

// advance moves each delta in same to its next row. A delta without more rows gets revision 0.
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

// verify reads the open deltas to their ends, to verify what was read of them.
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
