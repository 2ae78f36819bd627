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

var (
	// ErrEnded reports that a generation has ended: nothing may be added.
	ErrEnded = errors.New("the generation has ended")
	// ErrMoved reports that something was added to a generation meanwhile: read its head again.
	ErrMoved = errors.New("the generation was extended")
)

// End ends a generation after a head, so that its successor has everything that the store has ever confirmed. It may
// be repeated with the same nonce. ErrMoved reports that something was added after the head. ErrEnded reports that
// another process has ended the generation; the caller may complete that end.
func (a *Archive) End(ctx context.Context, generation Generation, head Head, session string, ending format.Ending) error {
	if head.Ending() != nil {
		return a.conflictError(generation, head.Newest())
	}
	return a.putEmpty(ctx, generation, head.Next(generation), format.Source{Session: session, Ends: &ending}, func(there format.Manifest) bool {
		return there.Ends != nil && there.Ends.Nonce == ending.Nonce
	})
}

// Open makes a full snapshot count that starts a chain. ErrEnded reports that the generation has ended, ErrMoved that
// another writer has used the position. It may be repeated.
func (a *Archive) Open(ctx context.Context, generation Generation, full Full, session string) error {
	if full.Behind == nil {
		return nil
	}
	source := format.Source{Session: session, Member: full.Member, Term: full.Term, Opens: full.Next}
	return a.putEmpty(ctx, generation, *full.Behind, source, func(there format.Manifest) bool { return there.Opens == full.Next })
}

// conflictError reports what occupies a position.
func (a *Archive) conflictError(generation Generation, there format.Manifest) error {
	why := ErrMoved
	if there.Ends != nil {
		why = ErrEnded
	}
	return fmt.Errorf("generation %d of %s: %w", generation.Number, a.store, why)
}

// putEmpty creates an empty segment, unless one with the same effect is there.
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

// LastAdded returns when the last object of a generation was created, by the store's clock; the zero time if that was
// merged, as it is older then.
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

// NewID returns 128 random bits in hexadecimal: the ID of a cluster, a restore or a session, which is one process.
func NewID() string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	return hex.EncodeToString(id[:])
}
