package archive

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store"
)

// A walk follows the sequence of a generation from object to object up to the end. Each object contains the position
// of the next object, so a walk also finds segments that are missing from the listing.
type walk struct {
	index index
	trust bool      // trust the names of merged objects instead of reading their manifests
	time  time.Time // creation time of the last object visited, if known

	format.Start       // expected start of the next object; has no digests after a merged object that was not read
	Err          error // why the next object does not continue the sequence; nil if there is no next object
}

// A step is an object in a sequence.
type step struct {
	Object                  // Next is always set; Size is only known if the object was listed
	last   *format.Manifest // manifest of the last segment; nil for a merged object that was not read
}

// walk returns a walk that begins at from.
func (x index) walk(from format.Start, trust bool) *walk {
	x.merged = slices.Clone(x.merged)
	return &walk{index: x, trust: trust, Start: from}
}

// steps yields consecutive objects. If a request fails, steps yields the error. If the next object cannot be verified
// or does not continue the sequence, steps stops and sets Err.
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
			default: // the segments that were merged into the object may still exist
				w.index.merged = slices.DeleteFunc(w.index.merged, func(o Object) bool { return o == object })
				if !w.index.reader.isOnlyName(ctx, object) {
					w.Err = err
				}
			}
		}
	}
}

// read returns the last manifest of an object, or an error if the object does not continue the sequence. If the walk
// trusts the names of merged objects, read returns no manifest for them.
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

// moveTo moves the walk to the end of an object. If the object was not listed, the time of its last marker is used as
// the creation time.
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

// isOnlyName reports whether a merged object has nothing but a valid name: its first manifest cannot be verified
// either.
func (r *objectStore) isOnlyName(ctx context.Context, object Object) bool {
	_, err := r.firstManifest(ctx, object)
	return NotVerified(err)
}

// lastSegment is like lastManifest, but returns an error if the object belongs to another cluster.
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

// verifiedIndex returns an index of listed objects. verifiedIndex reads unmerged segments to set their Next. Merged
// objects that are not followed by another object are read too, because their names may be forged to hide other
// objects.
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

// maxTrusted is the maximum size in bytes of a merged object that is used without reading its manifests. Larger
// objects are read, because an inflated size in a listing would make every volume appear too small for a restore.
const maxTrusted = 1 << 30

// mustRead reports whether an object must be read to find its end, because its name does not include the end or no
// other object starts at the end in its name.
func (x index) mustRead(object Object) bool {
	if object.Level == Segment {
		found, _ := x.find(object.Start)
		return found == object
	}
	next := x.segments[object.Next]
	return x.faults.errorOf(object.Name()) == nil && (object.Size > maxTrusted || !x.starts[object.Next] && (next == nil || next.Next.IsZero()))
}

// errorAt returns why an object that starts at a position is not used, or nil if there is no such object. If first is
// true, errorAt also considers objects that start before the position and contain it.
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

// candidates returns the objects that may extend beyond a position: the last segment that starts before the
// position, followed by the other objects, sorted by the ends in their names.
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

const maxListings = 5 // maximum number of consecutive listings

// A Head is the end of a generation, from which the next segment continues.
type Head struct {
	format.Start
	Full     *Full            // newest full snapshot; nil if there is none
	Segment  *format.Manifest // last segment after Full; nil if there is none
	Newer    error            // why a newer full snapshot is not used; nil if there is none
	Damaged  error            // why the object at Position is unusable and the chain ends there; nil if the object is usable or absent
	Unlinked *Link            // link that must be stored before Full can be used; nil if it is stored or not required
	PastEnd  format.Position  // position after the damaged object, where a new chain may start; zero if no object is damaged
}

// Empty reports whether the generation has no full snapshot, and therefore no chain.
func (h Head) Empty() bool { return h.Full == nil }

// Revision returns the last revision of the generation.
func (h Head) Revision() int64 { return h.Position.Revision - 1 }

// Newest returns the manifest of the last segment. If no segments follow the full snapshot yet, Newest returns a
// manifest with the term, member and session of the snapshot.
func (h Head) Newest() (newest format.Manifest) {
	switch {
	case h.Segment != nil:
		newest = *h.Segment
	case h.Full != nil:
		newest.Term, newest.Member, newest.Session = h.Full.Term, h.Full.Member, h.Full.Session
	}
	return newest
}

// Ending returns the end marker of the generation, or nil if the generation has not ended.
func (h Head) Ending() *format.Ending { return h.Newest().Ends }

// IsNewer reports whether the head is newer than a segment that would be stored at the head's position. Rows are
// ordered by revision, but a segment without rows may come from an earlier leader or a lagging member. Its leases or
// users must not replace newer ones.
func (h Head) IsNewer(next format.Manifest) bool {
	return next.Rows == 0 && (next.Term < h.Newest().Term || next.Applied != 0 && next.Applied < h.Applied)
}

// Head finds the end of a generation by listing its objects and reading a few manifests. If the object at the end
// cannot be verified, Damaged contains the reason. If no full snapshot can be verified, Head returns an error.
func (r *Reader) Head(ctx context.Context, generation int) (Head, error) {
	return retryList(func() (Head, error) {
		fulls, _, err := r.listSnapshots(ctx, generation)
		if err != nil {
			return Head{}, err
		}
		return r.headFrom(ctx, generation, fulls)
	})
}

// retryList calls look, and calls it again if an object was not found because it was merged and deleted after it had
// been listed.
func retryList[T any](look func() (T, error)) (seen T, err error) {
	for range maxListings {
		if seen, err = look(); !errors.Is(err, store.ErrNotFound) {
			break
		}
	}
	return seen, err
}

// headFrom returns the head of a generation, based on the newest full snapshot in fulls that can be verified and
// whose link, if any, is valid.
func (r *Reader) headFrom(ctx context.Context, generation int, fulls []StoredFull) (Head, error) {
	if len(fulls) == 0 {
		return r.headWithoutFull(ctx, generation)
	}
	full, newer, err := r.readLatestFull(ctx, fulls)
	if err != nil {
		return Head{}, err
	}
	head := Head{Start: full.Start(), Full: &full, Newer: newer}
	objects, err := r.Objects(ctx, generation)
	if err != nil {
		return Head{}, err
	}
	x := r.index(objects, nil)
	if err := r.lastVerified(ctx, &head, x); err != nil {
		return Head{}, err
	}
	if head.Segment == nil && full.Behind != nil {
		switch usable, err := r.checkLink(ctx, full, &head); {
		case err != nil:
			return Head{}, err
		case !usable:
			return r.headFrom(ctx, generation, slices.DeleteFunc(fulls, func(f StoredFull) bool { return f.Name() == full.Name() }))
		case head.Ending() != nil:
			return head, nil
		}
	}
	return r.advance(ctx, head, x)
}

// lastVerified advances the head from the full snapshot to the end of a verifiable object, preferably the last one.
// The search skips twice as many objects after each failure, so that many unverifiable objects cost only a few
// requests.
func (r *Reader) lastVerified(ctx context.Context, head *Head, x index) error {
	after := head.Position
	candidates := x.candidates(after)
	for i, step := len(candidates)-1, 1; i >= 0; step *= 2 {
		last, err := r.lastSegment(ctx, candidates[i], head.Cluster)
		if err != nil && !NotVerified(err) {
			return err
		}
		if err == nil && last.Next().Compare(after) > 0 {
			head.moveTo(*last)
			break
		}
		if i -= step; i < 0 && i > -step { // the first candidate is always tried
			i = 0
		}
	}
	return nil
}

// advance moves a head to the end of the sequence, one object at a time. An object that starts after the next
// position is ignored, because it belongs to a different history.
func (r *Reader) advance(ctx context.Context, head Head, x index) (Head, error) {
	walk := x.walk(head.Start, false)
	for next, err := range walk.steps(ctx) {
		if err != nil {
			return Head{}, err
		}
		head.moveTo(*next.last)
	}
	if walk.Err != nil && !NotVerified(walk.Err) {
		return Head{}, walk.Err
	}
	if walk.Err != nil { // the object is unusable, and its name alone does not prove where it ends
		head.Damaged, head.PastEnd = walk.Err, format.Position{Revision: head.Position.Revision, Part: head.Position.Part + 1}
	}
	return head, nil
}

// PastAll returns the first position after all objects of a generation that end at or before a revision, according to
// their names. If Head does not find a verifiable full snapshot, a writer that has reached this revision starts a new
// chain at that position.
func (r *Reader) PastAll(ctx context.Context, generation int, revision int64) (past format.Position, err error) {
	fulls, _, err := r.listSnapshots(ctx, generation)
	if err != nil {
		return past, err
	}
	objects, err := r.Objects(ctx, generation)
	if err != nil {
		return past, err
	}
	for _, full := range fulls {
		objects = append(objects, Object{Next: format.After(full.Revision)})
	}
	past = Origin
	for _, object := range objects {
		for _, end := range []format.Position{object.Next, {Revision: object.Start.Revision, Part: object.Start.Part + 1}} {
			if end.Revision <= revision+1 && end.Compare(past) > 0 {
				past = end
			}
		}
	}
	return past, nil
}

// moveTo moves the head to the end of a segment.
func (h *Head) moveTo(last format.Manifest) { h.Start, h.Segment = last.Start(), &last }

// Advance moves a known head forward by requesting the next segments by name. If there are none, Advance needs only
// one request. The result may be wrong if objects were merged after Head returned, so callers must call Head at least
// once per [Grace].
func (r *Reader) Advance(ctx context.Context, head Head) (Head, error) {
	head, err := r.advance(ctx, head, r.index(nil, nil))
	return head, cmp.Or(err, head.Damaged)
}

// readLatestFull reads the newest verifiable full snapshot. newer explains why a newer full snapshot cannot be
// verified. If no snapshot can be verified, readLatestFull returns the reason as err instead.
func (r *Reader) readLatestFull(ctx context.Context, fulls []StoredFull) (full Full, newer, err error) {
	for _, kept := range slices.Backward(fulls) {
		full, err = r.Full(ctx, kept.Generation, kept.Name())
		if !NotVerified(err) {
			return full, newer, err
		}
		newer = cmp.Or(newer, err)
	}
	return Full{}, nil, newer
}

// Next returns the next position of the generation and the digest of the chain at that position.
func (h Head) Next(generation Generation) Link {
	switch {
	case h.Unlinked != nil:
		return *h.Unlinked
	case !h.PastEnd.IsZero():
		return Link{h.PastEnd, h.Before}
	case h.Empty():
		return Link{Origin, format.Seed(generation.Cluster, generation.Number, 0)}
	default:
		return Link{h.Position, h.Before}
	}
}

// checkLink reports whether a full snapshot that starts a chain can be used. The snapshot cannot be used if the
// previous chain continues at the position of the link, or if the object at that position cannot be verified. If the
// position is still free, checkLink sets head.Unlinked. If the generation ended there, checkLink sets head.Segment to
// the end marker.
func (r *Reader) checkLink(ctx context.Context, full Full, head *Head) (usable bool, err error) {
	existing, err := r.Manifest(ctx, full.Generation, full.Behind.Position)
	switch {
	case errors.Is(err, store.ErrNotFound):
		head.Unlinked = full.Behind
		return true, nil
	case NotVerified(err):
		return false, nil
	case err != nil:
		return false, err
	case existing.Ends != nil:
		head.Segment = &existing
		return true, nil
	default:
		return existing.Opens == full.Next, nil
	}
}

// headWithoutFull returns the head of a generation without a full snapshot: an empty head, or the end marker if the
// generation has ended.
func (r *Reader) headWithoutFull(ctx context.Context, generation int) (Head, error) {
	existing, err := r.Manifest(ctx, generation, Origin)
	if err == nil && existing.Ends != nil {
		return Head{Segment: &existing}, nil
	}
	if errors.Is(err, store.ErrNotFound) || NotVerified(err) {
		err = nil
	}
	return Head{}, err
}

var (
	// ErrEnded reports that a generation has ended, so objects must not be added.
	ErrEnded = errors.New("the generation has ended")
	// ErrMoved reports that another process added an object to a generation, so the head must be read again.
	ErrMoved = errors.New("another process has written to the generation")
)

// End ends a generation at the head, so that the successor contains all confirmed backups. Repeated calls with the
// same nonce are safe. End returns ErrMoved if another process has added an object, and ErrEnded if another process
// has already ended the generation. After ErrEnded, the caller may create the successor.
func (a *Archive) End(ctx context.Context, generation Generation, head Head, session string, ending format.Ending) error {
	if head.Ending() != nil {
		return a.conflictError(generation, head.Newest())
	}
	return a.putEmpty(ctx, generation, head.Next(generation), format.Source{Session: session, Ends: &ending}, func(m format.Manifest) bool {
		return m.Ends != nil && m.Ends.Nonce == ending.Nonce
	})
}

// Open stores the link of a full snapshot that starts a chain. The snapshot is ignored until its link is stored.
// Calls may be repeated. Open returns ErrEnded if the generation has ended, and ErrMoved if another writer has used
// the position.
func (a *Archive) Open(ctx context.Context, generation Generation, full Full, session string) error {
	if full.Behind == nil {
		return nil
	}
	source := format.Source{Session: session, Member: full.Member, Term: full.Term, Opens: full.Next}
	return a.putEmpty(ctx, generation, *full.Behind, source, func(m format.Manifest) bool { return m.Opens == full.Next })
}

// conflictError returns the error for a position that another process has used.
func (a *Archive) conflictError(generation Generation, existing format.Manifest) error {
	why := ErrMoved
	if existing.Ends != nil {
		why = ErrEnded
	}
	return fmt.Errorf("generation %d in %s: %w", generation.Number, a.store, why)
}

// putEmpty creates a segment without rows. If the position is taken, putEmpty returns nil if same accepts the
// existing segment, and ErrMoved or ErrEnded otherwise.
func (a *Archive) putEmpty(ctx context.Context, generation Generation, at Link, source format.Source, same func(format.Manifest) bool) error {
	builder, err := format.NewSegmentBuilder(a.keys, format.Start{
		Cluster: generation.Cluster, Generation: generation.Number, Position: at.Position, Before: at.Before,
	})
	if err != nil {
		return err
	}
	object, err := builder.Finish(source)
	if err != nil {
		return err
	}
	if err = a.PutStored(ctx, object.Generation, object.Position, object.Reader()); !errors.Is(err, store.ErrExists) {
		return err
	}
	existing, err := a.Manifest(ctx, generation.Number, at.Position)
	switch {
	case NotVerified(err):
		existing = format.Manifest{}
	case err != nil:
		return err
	case same(existing):
		return nil
	}
	return a.conflictError(generation, existing)
}

// LastAdded returns the creation time of the last object in a generation according to the store's clock. If the last
// segment has already been merged and deleted, LastAdded returns the time of the full snapshot or, if that is missing
// too, of the generation.
func (r *Reader) LastAdded(ctx context.Context, generation Generation, head Head) (time.Time, error) {
	names := []string{generationName(generation.Number)}
	if head.Full != nil {
		names = append(names, ManifestName(generation.Number, head.Full.Name()))
	}
	if head.Segment != nil {
		names = append(names, SegmentName(generation.Number, head.Segment.Position))
	}
	for _, name := range slices.Backward(names) {
		added, err := store.Modified(ctx, r.store, name)
		if !errors.Is(err, store.ErrNotFound) {
			return added, err
		}
	}
	return time.Time{}, nil
}

// NewID returns 128 random bits in hexadecimal as the ID of a cluster, a restore or a session (one run of a process).
func NewID() string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	return hex.EncodeToString(id[:])
}
