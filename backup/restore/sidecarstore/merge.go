package sidecarstore

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"
)

// maxOverlap bounds how many deltas are read side by side. Two sidecars at a time make two or three.
const maxOverlap = 8

// merge reads deltas side by side, as one sequence of revisions.
type merge struct {
	ctx     context.Context
	archive *Archive
	waiting []Object // by first revision
	open    []*delta // each at a row that is still to come
	same    []*delta // those of open that have the next revision

	revision int64  // the next one
	name     string // of the delta that it is read from
}

// next finds the next revision. There is no more if it returns false: every delta was read to its end.
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

// lead is one of those that have the next revision.
func (m *merge) lead() *delta { return m.same[0] }

// received is when the first sidecar received the next revision.
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
