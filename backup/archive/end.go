package archive

import (
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

// A generation is one sequence of objects at computed positions, each created once; that a name is taken is the only lock there is.
// What ends a generation, or begins another chain in it, is an empty segment at the sequence's next position. Readers of rows pass
// over it as over any other.

// Origin is where the sequence of a generation begins that came out of a restore and has no full yet.
var Origin = format.Position{Revision: 1}

var (
	// ErrEnded says that the generation has ended: nothing may be added to it.
	ErrEnded = errors.New("the generation has ended")
	// ErrMoved says that something was added to a generation meanwhile: look at its head again.
	ErrMoved = errors.New("the generation has gone on")
)

// Link is where the sequence goes on in front of a full that begins a chain. The full counts once an empty segment there says so:
// otherwise a chain could begin beside the end of its generation.
type Link struct {
	format.Position
	Before format.Digest `json:"before"` // the chain's digest there
}

// Next is where the next object of the generation goes, and the digest of the chain there.
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

// End ends a generation behind a head, so that the one that wants to be its successor has all that the store ever confirmed. It may
// be repeated with one nonce. ErrMoved says that something was added behind the head, and ErrEnded that somebody else has ended it:
// whoever comes next completes that.
func (w *Writer) End(ctx context.Context, generation Generation, head Head, session string, ending format.Ending) error {
	if head.Ending() != nil {
		return w.taken(generation, head.Newest())
	}
	there, err := w.place(ctx, generation, head.Next(generation), format.Source{Session: session, Ends: &ending})
	switch {
	case !errors.Is(err, store.ErrExists):
		return err
	case there.Ends != nil && there.Ends.Nonce == ending.Nonce:
		return nil
	default:
		return w.taken(generation, there)
	}
}

// Open makes a full count that begins a chain. ErrEnded says that the generation has ended, and ErrMoved that another writer has added
// something in its place. It may be repeated.
func (w *Writer) Open(ctx context.Context, generation Generation, full Full, session string) error {
	if full.Behind == nil {
		return nil
	}
	there, err := w.place(ctx, generation, *full.Behind, format.Source{Session: session, Member: full.Member, Term: full.Term, Opens: full.Next})
	switch {
	case !errors.Is(err, store.ErrExists):
		return err
	case there.Opens == full.Next:
		return nil
	default:
		return w.taken(generation, there)
	}
}

// taken says what lies where something was to be added.
func (w *Writer) taken(generation Generation, there format.Manifest) error {
	why := ErrMoved
	if there.Ends != nil {
		why = ErrEnded
	}
	return fmt.Errorf("generation %d of %s: %w", generation.Number, w.reader.store, why)
}

// place puts an empty segment, and returns what is there with store.ErrExists.
func (w *Writer) place(ctx context.Context, generation Generation, at Link, source format.Source) (there format.Manifest, err error) {
	builder, err := format.NewSegmentBuilder(w.reader.keys, format.Start{
		Cluster: generation.Cluster, Generation: generation.Number, Position: at.Position, Before: at.Before,
	})
	if err != nil {
		return there, err
	}
	object, err := builder.Finish(source)
	if err != nil {
		return there, err
	}
	if err = w.PutStored(ctx, object.Generation, object.Position, object.Reader()); !errors.Is(err, store.ErrExists) {
		return there, err
	}
	there, failed := w.reader.Manifest(ctx, generation.Number, at.Position)
	if NotVerified(failed) {
		return format.Manifest{}, err
	}
	if failed != nil {
		return there, failed
	}
	return there, err
}

// LastAdded is when the end of a generation was created, by the store's clock. Of what was merged since, only that it is older is known.
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

// NewID is 128 random bits, hexadecimal: nobody else has them. It tells a cluster, a restore or a session, which is a process, from all
// others.
func NewID() string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // which never fails
	return hex.EncodeToString(id[:])
}

// linked finds out whether a full that begins a chain counts. Where something else lies in its place, the chain before went on, or
// nobody can.
func (r *Reader) linked(ctx context.Context, full Full, head *Head) (counts bool, err error) {
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

// unopened is the head of a generation without a full, which may have ended all the same.
func (r *Reader) unopened(ctx context.Context, generation int) (Head, error) {
	there, err := r.Manifest(ctx, generation, Origin)
	if err == nil && there.Ends != nil {
		return Head{Segment: &there}, nil
	}
	if errors.Is(err, store.ErrNotFound) || NotVerified(err) {
		err = nil
	}
	return Head{}, err
}
