package archive

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store"
)

const (
	listings = 5 // in a row at most
	// longest is more than a merged object covers, by the time of fulls.
	longest = 2 * time.Hour
)

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

// last is what the end says of itself: its last segment, or as much as the full that nothing follows says; nothing if there is none.
func (h Head) last() (last format.Manifest) {
	switch {
	case h.Segment != nil:
		last = *h.Segment
	case h.Full != nil:
		last.Term, last.Member, last.Session = h.Full.Term, h.Full.Member, h.Full.Session
	}
	return last
}

// Term is that of raft's in which its end was written; 0 if there is none.
func (h Head) Term() uint64 { return h.last().Term }

// Writer is the member that wrote its end: etcd's id, hexadecimal; empty if there is none.
func (h Head) Writer() string { return h.last().Member }

// Session is that of the process that wrote its end; empty if that is not known.
func (h Head) Session() string { return h.last().Session }

// Released tells whether that process has ended in order.
func (h Head) Released() bool { return h.last().Released }

// Ending is who goes on where the generation has ended; nil if it goes on itself.
func (h Head) Ending() *format.Ending { return h.last().Ends }

// Outdates tells whether a segment that could go on from the end states what is stated newer there: it has no rows, which have their
// place by their revisions, but leases or users as a leader knew them before the one that wrote the end, or a member that lagged.
func (h Head) Outdates(next format.Manifest) bool {
	return next.Rows == 0 && (next.Term < h.Term() || next.Applied != 0 && next.Applied < h.Applied)
}

// Head finds where a generation ends. It lists what is newer than the newest full, and reads a handful of manifests. Where the last
// of them cannot be believed, Damaged says why; where no full can, that is the error, and only PastEnd is set.
func (r *Reader) Head(ctx context.Context, generation int) (Head, error) {
	return listed(func() (Head, error) {
		names, err := r.fullNames(ctx, generation)
		if err != nil {
			return Head{}, err
		}
		return r.headOf(ctx, generation, names)
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
func (r *Reader) headOf(ctx context.Context, generation int, names []string) (Head, error) {
	if len(names) == 0 {
		return r.unopened(ctx, generation)
	}
	full, newer, err := r.newestFull(ctx, generation, names)
	if NotVerified(err) {
		pastEnd, failed := r.pastEverything(ctx, generation, names)
		return Head{PastEnd: pastEnd}, errors.Join(err, failed)
	}
	if err != nil {
		return Head{}, err
	}
	head := Head{Start: full.Start(), Full: &full, Newer: newer}
	if err := r.lastBelieved(ctx, &head, startOfMerged(names)); err != nil {
		return Head{}, err
	}
	if head.Segment == nil && full.Behind != nil {
		switch counts, err := r.linked(ctx, full, &head); {
		case err != nil:
			return Head{}, err
		case !counts:
			return r.headOf(ctx, generation, slices.DeleteFunc(names, func(name string) bool { return name == full.Name() }))
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

// lastBelieved moves a head that is a full to the end of the newest object behind it that can be believed.
func (r *Reader) lastBelieved(ctx context.Context, head *Head, merged format.Position) error {
	useless := map[string]bool{}
	for {
		newest, err := r.newestObject(ctx, *head.Full, merged, useless)
		if err != nil || newest == nil {
			return err
		}
		last, err := r.lastManifest(ctx, *newest)
		if err == nil && last.Cluster != head.Cluster {
			err = r.anothers(newest.Name(), last.Cluster, head.Cluster)
		}
		if err == nil {
			head.arrive(last)
		}
		if !NotVerified(err) {
			return err
		}
		useless[newest.Name()] = true
		if _, first := r.firstManifest(ctx, *newest); newest.Level == Segment || !NotVerified(first) {
			head.overlook(*newest, err) // else it has nothing of a merged object but the name
		}
	}
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

// pastEverything is behind everything that a generation has, be it of use or not.
func (r *Reader) pastEverything(ctx context.Context, generation int, fulls []string) (format.Position, error) {
	revision, _, _ := ParseFullName(fulls[len(fulls)-1])
	all := Head{PastEnd: format.After(revision)}
	x, err := r.indexed(ctx, generation)
	if err != nil {
		return format.Position{}, err
	}
	for _, object := range x.all() {
		all.overlook(object, nil)
	}
	return all.PastEnd, nil
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
			return Head{}, r.named(SegmentName(next.Generation, next.Position),
				fmt.Errorf("%w: it doesn't go on from what is before it", ErrHole))
		}
		head.arrive(next)
	}
}

// fullNames lists the fulls that have a manifest, oldest first.
func (r *Reader) fullNames(ctx context.Context, generation int) (names []string, err error) {
	prefix := fullPrefix(generation)
	for object, err := range r.store.List(ctx, prefix, "") {
		if err != nil {
			return nil, err
		}
		name, manifest := strings.CutSuffix(strings.TrimPrefix(object.Name, prefix), "/manifest.json")
		if _, _, err := ParseFullName(name); manifest && err == nil {
			names = append(names, name)
		}
	}
	return names, nil
}

// newestFull reads the newest one that can be believed. newer says why the newest of all can't, and is the error if none can.
func (r *Reader) newestFull(ctx context.Context, generation int, names []string) (full Full, newer, err error) {
	for i := len(names) - 1; i >= 0; i-- {
		full, err = r.Full(ctx, generation, names[i])
		if !NotVerified(err) {
			return full, newer, err
		}
		if newer == nil {
			newer = err
		}
	}
	return Full{}, nil, newer
}

// newestObject is the one that holds the newest segment behind a full, of those that are of use; nil if there is none. Segments
// are listed first: what is merged and deleted meanwhile is then in one of the other lists.
func (r *Reader) newestObject(ctx context.Context, full Full, merged format.Position, useless map[string]bool) (newest *Object, err error) {
	segments, err := r.Objects(ctx, full.Generation, Segment, full.Next)
	if err != nil {
		return nil, err
	}
	segments = slices.DeleteFunc(segments, func(o Object) bool { return useless[o.Name()] })
	end := full.Next
	if len(segments) > 0 {
		newest = &segments[len(segments)-1]
		end = newest.Start
	}
	for _, level := range []Level{Minute, Hour} {
		objects, err := r.Objects(ctx, full.Generation, level, merged)
		if err != nil {
			return nil, err
		}
		for _, object := range objects {
			if object.Next.Compare(end) > 0 && !useless[object.Name()] {
				newest, end = &object, object.Next
			}
		}
	}
	if newest == nil && full.BeginsChain() {
		return r.across(ctx, full, merged)
	}
	return newest, nil
}

// across is the segment of the chain before a full that goes on across it; nil if there is none.
func (r *Reader) across(ctx context.Context, full Full, from format.Position) (*Object, error) {
	segments, err := r.Objects(ctx, full.Generation, Segment, from)
	if err != nil {
		return nil, err
	}
	x := newIndex(segments, nil, nil)
	last, found := x.lastBefore(full.Next)
	if !found {
		return nil, nil
	}
	if passed, err := r.passed(ctx, full, x); err != nil || !passed {
		return nil, err
	}
	return &last, nil
}

// startOfMerged is where merged objects that reach beyond the newest full can begin at the earliest.
func startOfMerged(fulls []string) format.Position {
	_, newest, _ := ParseFullName(fulls[len(fulls)-1])
	for i := len(fulls) - 1; i >= 0; i-- {
		revision, at, _ := ParseFullName(fulls[i])
		if newest.Sub(at) >= longest {
			return format.Position{Revision: revision}
		}
	}
	return format.Position{}
}
