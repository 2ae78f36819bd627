package archive

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"slices"
	"time"

	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store"
)

// A walk follows the sequence of a generation from object to object and determines where the sequence ends. The end
// of an object determines the position of the next object, so a walk also finds segments that have not been listed
// yet.
type walk struct {
	index index
	trust bool      // trust the ends in the names of merged objects without reading manifests
	time  time.Time // creation time of the last object, if known

	format.Start       // expected start of the next object; without digests after an unread merged object
	Err          error // why the next object does not continue the sequence; nil if there is none
}

// A step is an object in a sequence.
type step struct {
	Object                  // Next is always set; Size is unknown if no listing includes the object
	last   *format.Manifest // manifest of the last segment; nil for an unread merged object
}

// walk returns a walk from a start.
func (x index) walk(from format.Start, trust bool) *walk {
	x.merged = slices.Clone(x.merged)
	return &walk{index: x, trust: trust, Start: from}
}

// steps yields consecutive objects. An error means that an object could not be read.
func (w *walk) steps(ctx context.Context) iter.Seq2[step, error] {
	return func(yield func(step, error) bool) {
		for first := w.Position; ; {
			object, listed := w.index.find(w.Position)
			if !listed {
				object = Object{Level: Segment, Generation: w.Generation, Start: w.Position}
			}
			last, err := w.read(ctx, object)
			switch {
			case err == nil:
				next := step{object, last}
				w.moveTo(&next.Object, last)
				if !yield(next, nil) {
					return
				}
			case !listed && errors.Is(err, store.ErrNotFound):
				w.Err = cmp.Or(w.Err, w.index.errorAt(w.Position, w.Position == first))
				return
			case !NotVerified(err) && !errors.Is(err, ErrHole) && w.index.faults.errorOf(object.Name()) == nil:
				yield(step{}, err)
				return
			case object.Level == Segment:
				w.Err = err
				return
			default: // the unmerged segments may still exist
				w.index.merged = slices.DeleteFunc(w.index.merged, func(o Object) bool { return o == object })
				if !w.index.reader.isOnlyName(ctx, object) {
					w.Err = err
				}
			}
		}
	}
}

// read returns the last manifest of an object that continues the sequence.
func (w *walk) read(ctx context.Context, object Object) (*format.Manifest, error) {
	if err := w.index.faults.errorOf(object.Name()); err != nil {
		return nil, err
	}
	if object.Level != Segment && w.trust {
		return nil, nil
	}
	last, err := w.index.reader.lastSegment(ctx, object, w.Cluster)
	if err == nil && object.Level == Segment && w.Before != (format.Digest{}) && last.Before != w.Before {
		err = w.index.reader.sequenceError(object, *last)
	}
	return last, err
}

// moveTo moves the walk to the end of an object. An object that is not listed gets the time of its last marker.
func (w *walk) moveTo(object *Object, last *format.Manifest) {
	if object.Modified.IsZero() && last != nil {
		object.Modified = MaxTime(w.time, last.To)
	}
	w.time = object.Modified
	if w.Err = nil; last == nil {
		w.Start = format.Start{Cluster: w.Cluster, Generation: w.Generation, Position: object.Next}
		return
	}
	w.Start, object.Next = last.Start(), last.Next()
}

// isOnlyName reports whether a merged object has no part that can be verified.
func (r *objectStore) isOnlyName(ctx context.Context, object Object) bool {
	_, err := r.firstManifest(ctx, object)
	return NotVerified(err)
}

// lastSegment returns the last manifest of an object in a cluster, from the cache if possible.
func (r *objectStore) lastSegment(ctx context.Context, object Object, cluster string) (*format.Manifest, error) {
	last, err := r.lastManifest(ctx, object)
	if err == nil && last.Cluster != cluster {
		return nil, r.otherClusterError(object.Name(), last.Cluster, cluster)
	}
	return last, err
}

// An index finds listed objects by position.
type index struct {
	reader   *objectStore
	objects  []Object // objects of all levels, ordered by first position
	segments map[format.Position]*Object
	merged   []Object
	starts   map[format.Position]bool // start positions of merged objects
	faults   faultList                // objects that must not be used
}

func (r *objectStore) index(objects []Object, known faultList) index {
	x := index{reader: r, objects: objects, segments: map[format.Position]*Object{}, starts: map[format.Position]bool{}, faults: known}
	slices.SortStableFunc(objects, func(a, b Object) int { return a.Start.Compare(b.Start) })
	for i, object := range objects {
		switch {
		case known.errorOf(object.Name()) != nil:
		case object.Level == Segment:
			x.segments[object.Start] = &objects[i]
		default:
			x.merged, x.starts[object.Start] = append(x.merged, object), true
		}
	}
	return x
}

// verifiedIndex returns an index of listed objects. verifiedIndex reads unmerged segments to set their Next, and
// merged objects that no other object follows, so that a forged name cannot hide the content of another object.
func (r *objectStore) verifiedIndex(ctx context.Context, objects []Object, cluster string, known faultList) (index, error) {
	for {
		x, unusable := r.index(objects, known), make(faultList, len(objects))
		for _, merged := range []bool{false, true} {
			err := forEach(len(objects), func(i int) error {
				object := &objects[i]
				if merged != (object.Level != Segment) || !x.mustRead(*object) {
					return nil
				}
				last, err := r.lastSegment(ctx, *object, cluster)
				switch {
				case err == nil:
					object.Next = last.Next()
				case merged && Unusable(err):
					unusable[i] = &Fault{Object: object.Name(), From: object.Start, Err: err}
				case !Unusable(err):
					return err
				}
				return nil
			})
			if err != nil {
				return x, err
			}
		}
		unusable = slices.DeleteFunc(unusable, func(f *Fault) bool { return f == nil })
		if len(unusable) == 0 {
			return x, nil
		}
		known = slices.Concat(known, unusable)
	}
}

// maxTrusted is the maximum size in bytes of a merged object that is used without reading its manifests. An inflated
// object would make a volume seem too small.
const maxTrusted = 1 << 30

// mustRead reports whether the end of an object must be read, because the name does not contain the end or no
// following object confirms the end.
func (x index) mustRead(object Object) bool {
	if object.Level == Segment {
		found, _ := x.find(object.Start)
		return found == object
	}
	next := x.segments[object.Next]
	return x.faults.errorOf(object.Name()) == nil && (object.Size > maxTrusted || !x.starts[object.Next] && (next == nil || next.Next.IsZero()))
}

// errorAt returns why a merged object at a position is not used, or nil if there is no such object. A path within a
// merged object uses other objects unless the object starts at that position.
func (x index) errorAt(position format.Position, first bool) error {
	for _, object := range x.objects {
		if object.Start == position || first && object.contains(position) {
			if why := x.faults.errorOf(object.Name()); why != nil {
				return why
			}
		}
	}
	return nil
}

// find returns the object to read at a position. If more than one object contains the position, find returns the one
// that extends furthest.
func (x index) find(position format.Position) (best Object, found bool) {
	for _, object := range x.merged {
		if object.contains(position) && object.Next.Compare(best.Next) > 0 {
			best, found = object, true
		}
	}
	if segment := x.segments[position]; !found && segment != nil {
		return *segment, true
	}
	return best, found
}

// candidates returns the objects that extend beyond a position, sorted by the ends in their names. The segment before
// the position comes first.
func (x index) candidates(position format.Position) (all []Object) {
	var before []Object
	for i, object := range x.objects {
		switch {
		case object.Start.Compare(position) >= 0 || object.Next.Compare(position) > 0:
			all = append(all, object)
		case object.Level == Segment:
			before = x.objects[i : i+1]
		}
	}
	slices.SortStableFunc(all, func(a, b Object) int { return a.NamedEnd().Compare(b.NamedEnd()) })
	return slices.Concat(before, all)
}
