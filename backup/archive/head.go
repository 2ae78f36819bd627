package archive

import (
	"context"
	"errors"
	"slices"
	"time"

	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store"
)

const listings = 5 // in a row at most

// longest is more than a segment or a merged object covers, by the time of fulls.
const longest = 2 * time.Hour

// Head is where a generation stands: what the next segment goes on from.
type Head struct {
	format.Start
	Full     *Full            // the newest one; nil if there is none
	Segment  *format.Manifest // the newest one behind that full; nil if there is none
	Newer    error            // why a full that is newer than Full does not count; nil if there is none
	Damaged  error            // why what lies behind it does not count: nobody goes on from here then; nil if nothing does
	Unlinked *Link            // where the object goes that makes the full count; nil if it counts, as it does where something is behind it
	PastEnd  format.Position  // past all that does not count: where a new chain leaves it alone; zero if everything counts
}

// Empty tells whether there is nothing to go on from: a full must come first.
func (h Head) Empty() bool { return h.Full == nil }

// Revision is the last one that is kept.
func (h Head) Revision() int64 { return h.Position.Revision - 1 }

// Newest is what the end says of itself: its last segment, or as much as the full that nothing follows says; nothing if there is none.
func (h Head) Newest() (newest format.Manifest) {
	switch {
	case h.Segment != nil:
		newest = *h.Segment
	case h.Full != nil:
		newest.Term, newest.Member, newest.Session = h.Full.Term, h.Full.Member, h.Full.Session
	}
	return newest
}

// Ending is who goes on where the generation has ended; nil if it goes on itself.
func (h Head) Ending() *format.Ending { return h.Newest().Ends }

// Outdates tells whether a segment that could go on from the end states what is stated newer there: it has no rows, which have their
// place by their revisions, but leases or users as a leader knew them before the one that wrote the end, or a member that lagged.
func (h Head) Outdates(next format.Manifest) bool {
	return next.Rows == 0 && (next.Term < h.Newest().Term || next.Applied != 0 && next.Applied < h.Applied)
}

// Head finds where a generation ends. It lists what is newer than the newest full, and reads a handful of manifests. Where the last of
// them cannot be believed, Damaged says why; where no full can, that is the error, and only PastEnd is set.
func (r *Reader) Head(ctx context.Context, generation int) (Head, error) {
	return listed(func() (Head, error) {
		fulls, _, err := r.listFulls(ctx, generation)
		if err != nil {
			return Head{}, err
		}
		return r.headOf(ctx, generation, fulls)
	})
}

// listed looks at what is listed, and lists it anew where something of it was merged and deleted before it could be read.
func listed[T any](look func() (T, error)) (seen T, err error) {
	for range listings {
		if seen, err = look(); !errors.Is(err, store.ErrNotFound) {
			break
		}
	}
	return seen, err
}

// headOf is the head as far as some of the fulls tell, those that do not count left out.
func (r *Reader) headOf(ctx context.Context, generation int, fulls []KeptFull) (Head, error) {
	if len(fulls) == 0 {
		return r.unopened(ctx, generation)
	}
	full, newer, err := r.newestFull(ctx, fulls)
	if NotVerified(err) {
		all := Head{PastEnd: format.After(fulls[len(fulls)-1].Revision)}
		x, failed := r.indexed(ctx, generation)
		if failed != nil {
			return Head{}, errors.Join(err, failed)
		}
		for _, object := range x.all() {
			all.overlook(object, nil)
		}
		return Head{PastEnd: all.PastEnd}, err
	}
	if err != nil {
		return Head{}, err
	}
	head := Head{Start: full.Start(), Full: &full, Newer: newer}
	if err := r.lastBelieved(ctx, &head, fulls); err != nil {
		return Head{}, err
	}
	if head.Segment == nil && full.Behind != nil {
		switch counts, err := r.linked(ctx, full, &head); {
		case err != nil:
			return Head{}, err
		case !counts:
			return r.headOf(ctx, generation, slices.DeleteFunc(fulls, func(f KeptFull) bool { return f.Name() == full.Name() }))
		case head.Ending() != nil:
			return head, nil
		}
	}
	further, err := r.Advance(ctx, head)
	if NotVerified(err) {
		head.overlook(Object{Level: Segment, Start: head.Position}, err)
		return head, nil
	}
	return further, err
}

// lastBelieved moves a head that is a full to the end of the newest object behind it that can be believed. Where there is none, a segment
// of the chain before a full that begins another one may go on across it.
func (r *Reader) lastBelieved(ctx context.Context, head *Head, fulls []KeptFull) error {
	full, from := *head.Full, format.Position{} // where what reaches beyond the full begins at the earliest
	for _, older := range fulls {
		if older.Revision < full.Revision && full.Time.Sub(older.Time) >= longest {
			from.Revision = older.Revision
		}
	}
	x, err := r.list(ctx, full.Generation, full.Next, from)
	if err != nil {
		return err
	}
	for {
		newest, found := x.newest(full.Next)
		if !found {
			break
		}
		last, err := r.lastManifest(ctx, newest)
		if err == nil && last.Cluster != full.Cluster {
			err = r.anothers(newest.Name(), last.Cluster, full.Cluster)
		}
		if err == nil {
			head.arrive(last)
		}
		if !NotVerified(err) {
			return err
		}
		x = x.without(func(o Object) bool { return o.Name() == newest.Name() })
		if _, first := r.firstManifest(ctx, newest); newest.Level == Segment || !NotVerified(first) {
			head.overlook(newest, err) // else it has nothing of a merged object but the name
		}
	}
	if !full.BeginsChain() {
		return nil
	}
	segments, err := r.Objects(ctx, full.Generation, Segment, from)
	if err != nil {
		return err
	}
	before := newIndex(segments, nil, nil).before(full.Next)
	if passed, err := r.passed(ctx, full, before); err != nil || !passed {
		return err
	}
	crossing, _ := before.lastBefore(full.Next)
	last, err := r.firstManifest(ctx, crossing)
	if err == nil {
		head.arrive(last)
	}
	return err
}

// overlook notes an object that does not count. Where its last segment ends is unknown, unless its name tells.
func (h *Head) overlook(object Object, why error) {
	reach := object.Next
	if object.Level == Segment {
		reach = format.Position{Revision: object.Start.Revision, Part: object.Start.Part + 1}
	}
	if h.Damaged == nil {
		h.Damaged = why
	}
	if reach.Compare(h.PastEnd) > 0 {
		h.PastEnd = reach
	}
}

// arrive moves the head to the end of a segment. What does not count is no matter if that reaches as far.
func (h *Head) arrive(last format.Manifest) {
	h.Start, h.Segment = last.Start(), &last
	if h.PastEnd.Compare(h.Position) <= 0 {
		h.Damaged, h.PastEnd = nil, format.Position{}
	}
}

// Advance goes on from a head that is known, by the names that the next segments must have. It costs one request if there are
// none, and is right as long as nothing was merged that it doesn't know: ask for Head once in a [Grace].
func (r *Reader) Advance(ctx context.Context, head Head) (Head, error) {
	for {
		next, err := r.Manifest(ctx, head.Generation, head.Position)
		if errors.Is(err, store.ErrNotFound) {
			return head, nil
		}
		if err != nil {
			return Head{}, err
		}
		if next.Cluster != head.Cluster {
			return Head{}, r.anothers(SegmentName(next.Generation, next.Position), next.Cluster, head.Cluster)
		}
		if next.Before != head.Before {
			return Head{}, r.apart(Object{Level: Segment, Generation: next.Generation, Start: next.Position}, next)
		}
		head.arrive(next)
	}
}

// newestFull reads the newest one that can be believed. newer says why the newest of all can't, and is the error if none can.
func (r *Reader) newestFull(ctx context.Context, fulls []KeptFull) (full Full, newer, err error) {
	for _, kept := range slices.Backward(fulls) {
		full, err = r.Full(ctx, kept.Generation, kept.Name())
		if !NotVerified(err) {
			return full, newer, err
		}
		if newer == nil {
			newer = err
		}
	}
	return Full{}, nil, newer
}
