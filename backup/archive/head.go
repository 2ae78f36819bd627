package archive

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store"
)

const maxListings = 5 // maximum number of consecutive listings

// A Head is the end of a generation, from which the next segment continues.
type Head struct {
	format.Start
	Full     *Full            // newest full snapshot; nil if there is none
	Segment  *format.Manifest // last segment after Full; nil if there is none
	Newer    error            // why a newer full snapshot does not count; nil if there is none
	Damaged  error            // why the object at Position is unusable and the chain ends there; nil if the object is usable or absent
	Unlinked *Link            // missing link that Full requires to count; nil if Full counts
	PastEnd  format.Position  // position after the damaged object, where a new chain may start; zero if no object is damaged
}

// Empty reports whether the generation has no full snapshot to start a chain.
func (h Head) Empty() bool { return h.Full == nil }

// Revision returns the last revision of the generation.
func (h Head) Revision() int64 { return h.Position.Revision - 1 }

// Newest returns the manifest of the last segment or, if the full snapshot has no segments yet, the corresponding
// fields of the snapshot.
func (h Head) Newest() (newest format.Manifest) {
	switch {
	case h.Segment != nil:
		newest = *h.Segment
	case h.Full != nil:
		newest.Term, newest.Member, newest.Session = h.Full.Term, h.Full.Member, h.Full.Session
	}
	return newest
}

// Ending returns how the generation ended, or nil if it has not ended.
func (h Head) Ending() *format.Ending { return h.Newest().Ends }

// IsNewer reports whether the head is newer than a segment that could follow it. Rows are ordered by revision, but a
// segment without rows may contain leases or users from an earlier leader or a lagging member.
func (h Head) IsNewer(next format.Manifest) bool {
	return next.Rows == 0 && (next.Term < h.Newest().Term || next.Applied != 0 && next.Applied < h.Applied)
}

// Head finds the end of a generation by listing the objects after the newest full snapshot and reading a few
// manifests. If the object at the end cannot be verified, Damaged contains the reason. If no full snapshot can be
// verified, Head returns an error.
func (r *Reader) Head(ctx context.Context, generation int) (Head, error) {
	return retryList(func() (Head, error) {
		fulls, _, err := r.listSnapshots(ctx, generation)
		if err != nil {
			return Head{}, err
		}
		return r.headFrom(ctx, generation, fulls)
	})
}

// retryList repeats look if an object was merged and deleted between listing and reading.
func retryList[T any](look func() (T, error)) (seen T, err error) {
	for range maxListings {
		if seen, err = look(); !errors.Is(err, store.ErrNotFound) {
			break
		}
	}
	return seen, err
}

// headFrom returns the head based on the given full snapshots. Callers omit snapshots that do not count.
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
		switch counts, err := r.checkLink(ctx, full, &head); {
		case err != nil:
			return Head{}, err
		case !counts:
			return r.headFrom(ctx, generation, slices.DeleteFunc(fulls, func(f StoredFull) bool { return f.Name() == full.Name() }))
		case head.Ending() != nil:
			return head, nil
		}
	}
	return r.advance(ctx, head, x)
}

// lastVerified advances the head from the full snapshot to the end of a verifiable object near the end.
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
		if i -= step; i < 0 && i > -step { // always includes the first candidate
			i = 0
		}
	}
	return nil
}

// advance moves a head to the end of the sequence, one object at a time. Only an object at the next position can
// follow: an object further ahead is not part of this history.
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
	if walk.Err != nil { // the name alone does not prove where the object ends
		head.Damaged, head.PastEnd = walk.Err, format.Position{Revision: head.Position.Revision, Part: head.Position.Part + 1}
	}
	return head, nil
}

// PastAll returns the first position after all objects of a generation that may belong to a history up to a revision,
// according to object names. The writer of that history calls PastAll if Head does not find a verifiable full
// snapshot.
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

// Advance moves a known head forward by requesting the next segments by name, which takes a single request if there
// are none. If objects were merged after Head returned, the result may be wrong, so callers must call Head once per
// [Grace].
func (r *Reader) Advance(ctx context.Context, head Head) (Head, error) {
	head, err := r.advance(ctx, head, r.index(nil, nil))
	return head, cmp.Or(err, head.Damaged)
}

// readLatestFull reads the newest verifiable full snapshot. newer is the reason why a newer one cannot be verified.
// If no snapshot can be verified, readLatestFull returns that reason as the error.
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

// checkLink reports whether a full snapshot that starts a chain counts. If a different object occupies the link's
// position, the previous chain has continued, or the position cannot be used.
func (r *Reader) checkLink(ctx context.Context, full Full, head *Head) (counts bool, err error) {
	there, err := r.Manifest(ctx, full.Generation, full.Behind.Position)
	switch {
	case errors.Is(err, store.ErrNotFound):
		head.Unlinked = full.Behind
		return true, nil
	case NotVerified(err):
		return false, nil
	case err != nil:
		return false, err
	case there.Ends != nil:
		head.Segment = &there
		return true, nil
	default:
		return there.Opens == full.Next, nil
	}
}

// headWithoutFull returns the head of a generation without a full snapshot. A generation without a full snapshot may
// also have ended.
func (r *Reader) headWithoutFull(ctx context.Context, generation int) (Head, error) {
	there, err := r.Manifest(ctx, generation, Origin)
	if err == nil && there.Ends != nil {
		return Head{Segment: &there}, nil
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

// End ends a generation at the head, so that the successor contains all confirmed backups. Calls may be repeated with
// the same nonce. ErrMoved reports that another process added an object. ErrEnded reports that another process has
// ended the generation; the caller may then create the successor.
func (a *Archive) End(ctx context.Context, generation Generation, head Head, session string, ending format.Ending) error {
	if head.Ending() != nil {
		return a.conflictError(generation, head.Newest())
	}
	return a.putEmpty(ctx, generation, head.Next(generation), format.Source{Session: session, Ends: &ending}, func(there format.Manifest) bool {
		return there.Ends != nil && there.Ends.Nonce == ending.Nonce
	})
}

// Open stores the link of a full snapshot that starts a chain, so that the snapshot counts. Calls may be repeated.
// ErrEnded reports that the generation has ended, and ErrMoved that another writer has used the position.
func (a *Archive) Open(ctx context.Context, generation Generation, full Full, session string) error {
	if full.Behind == nil {
		return nil
	}
	source := format.Source{Session: session, Member: full.Member, Term: full.Term, Opens: full.Next}
	return a.putEmpty(ctx, generation, *full.Behind, source, func(there format.Manifest) bool { return there.Opens == full.Next })
}

// conflictError returns the error for a position that another process has used.
func (a *Archive) conflictError(generation Generation, there format.Manifest) error {
	why := ErrMoved
	if there.Ends != nil {
		why = ErrEnded
	}
	return fmt.Errorf("generation %d in %s: %w", generation.Number, a.store, why)
}

// putEmpty creates an empty segment, unless an equivalent segment exists.
func (a *Archive) putEmpty(ctx context.Context, generation Generation, at Link, source format.Source, same func(there format.Manifest) bool) error {
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
	there, err := a.Manifest(ctx, generation.Number, at.Position)
	switch {
	case NotVerified(err):
		there = format.Manifest{}
	case err != nil:
		return err
	case same(there):
		return nil
	}
	return a.conflictError(generation, there)
}

// LastAdded returns the creation time of the last object in a generation according to the store's clock, or the zero
// time if the object has already been merged.
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

// NewID returns 128 random bits in hexadecimal as the ID of a cluster, a restore or a session (the lifetime of a
// process).
func NewID() string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	return hex.EncodeToString(id[:])
}
