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
	Damaged  error            // why the object at Position does not count: no chain continues there then; nil if there is none
	Unlinked *Link            // where the object goes that makes the full count; nil if it counts, as it does where something is behind it
	PastEnd  format.Position  // behind the object that is damaged, where a new chain leaves it alone; zero if none is
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

// Head finds where a generation ends. It lists what is newer than the newest full snapshot, and reads a handful of manifests. If what lies at the
// end cannot be verified, Damaged says why; if no full snapshot can, that is the error.
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
	if err != nil {
		return Head{}, err
	}
	head := Head{Start: full.Start(), Full: &full, Newer: newer}
	x, err := r.lastBelieved(ctx, &head, fulls)
	if err != nil {
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
	return r.climb(ctx, head, x)
}

// lastBelieved moves a head that is a full snapshot to the end of a late object that can be verified, and returns the objects behind the full
// snapshot. Where there is none, a segment of the chain before may continue across a full snapshot that begins another chain.
func (r *Reader) lastBelieved(ctx context.Context, head *Head, fulls []KeptFull) (*index, error) {
	full, from := *head.Full, format.Position{} // where what reaches beyond the full begins at the earliest
	for _, older := range fulls {
		if older.Revision < full.Revision && full.Time.Sub(older.Time) >= longest {
			from.Revision = older.Revision
		}
	}
	x, err := r.list(ctx, full.Generation, full.Next, from)
	if err != nil {
		return nil, err
	}
	candidates := x.reaching(full.Next)
	for i, step := len(candidates)-1, 1; i >= 0; i, step = i-step, 2*step {
		last, err := r.verified(ctx, candidates[i], full.Cluster)
		if err == nil {
			head.arrive(last)
			return x, nil
		}
		if !NotVerified(err) {
			return nil, err
		}
	}
	if !full.BeginsChain() {
		return x, nil
	}
	segments, err := r.Objects(ctx, full.Generation, Segment, from)
	if err != nil {
		return nil, err
	}
	before := newIndex(segments, nil, nil).before(full.Next)
	if passed, err := r.passed(ctx, full, before); err != nil || !passed {
		return x, err
	}
	crossing, _ := before.lastBefore(full.Next)
	last, err := r.firstManifest(ctx, crossing)
	if err == nil {
		head.arrive(last)
	}
	return x, err
}

// verified returns the manifest of an object's last segment if it is a cluster's.
func (r *Reader) verified(ctx context.Context, object Object, cluster string) (format.Manifest, error) {
	last, err := r.lastManifest(ctx, object)
	if err == nil && last.Cluster != cluster {
		err = r.anothers(object.Name(), last.Cluster, cluster)
	}
	return last, err
}

// climb moves a head from object to object to the end of the sequence. Only what begins there can follow: what lies farther on is not of this
// history, whatever it is called. Of a merged object that cannot be verified at all there is nothing but the name.
func (r *Reader) climb(ctx context.Context, head Head, x *index) (Head, error) {
	for {
		object, listed := x.at(head.Position)
		if !listed {
			object = Object{Level: Segment, Generation: head.Generation, Start: head.Position}
		}
		last, err := r.following(ctx, head, object)
		switch {
		case err == nil:
			head.arrive(last)
		case !listed && errors.Is(err, store.ErrNotFound):
			return head, nil
		case !NotVerified(err):
			return Head{}, err
		case object.Level != Segment && r.onlyNamed(ctx, object):
			x = x.without(func(o Object) bool { return o.Name() == object.Name() })
		default:
			// Where the object ends is unknown, as its name proves nothing.
			head.Damaged, head.PastEnd = err, format.Position{Revision: head.Position.Revision, Part: head.Position.Part + 1}
			return head, nil
		}
	}
}

// following returns the last manifest of an object that begins where a head ends.
func (r *Reader) following(ctx context.Context, head Head, object Object) (format.Manifest, error) {
	last, err := r.verified(ctx, object, head.Cluster)
	if err == nil && object.Level == Segment && last.Before != head.Before {
		err = r.apart(object, last)
	}
	return last, err
}

// onlyNamed reports whether nothing in a merged object can be verified.
func (r *Reader) onlyNamed(ctx context.Context, object Object) bool {
	_, err := r.firstManifest(ctx, object)
	return NotVerified(err)
}

// PastAll returns the first position behind everything in a generation that can be of a history that ends with a revision, by its name. It is for
// a writer of that history, where Head finds no full snapshot that can be verified.
func (r *Reader) PastAll(ctx context.Context, generation int, revision int64) (past format.Position, err error) {
	fulls, _, err := r.listFulls(ctx, generation)
	if err != nil {
		return past, err
	}
	x, err := r.indexed(ctx, generation)
	if err != nil {
		return past, err
	}
	past = Origin
	within := func(end format.Position) {
		if end.Revision <= revision+1 && end.Compare(past) > 0 {
			past = end
		}
	}
	for _, full := range fulls {
		within(format.After(full.Revision))
	}
	for _, object := range x.all() {
		within(format.Position{Revision: object.Start.Revision, Part: object.Start.Part + 1})
		within(object.Next)
	}
	return past, nil
}

// arrive moves the head to the end of a segment.
func (h *Head) arrive(last format.Manifest) { h.Start, h.Segment = last.Start(), &last }

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
