package archive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"etcd-wrapper/backup/format/seal"
	"etcd-wrapper/backup/format/segment"
	"etcd-wrapper/backup/store"
)

// Merge writes the segments of sources, one after the other, into one object of a level. The sources must follow one another,
// and span an hour at most. Each is checked on the way as far as that needs no identity. It may be repeated. The sources stay
// until somebody deletes them.
//
// ErrHole says that the sources don't follow one another, that one of them cannot be believed, or that another segment begins within
// them: they stay as they are.
// store.ErrExists says that another object of that level, or of a higher one, holds the first of them already: there was another
// writer, and merging goes on behind that object.
func (a *Archive) Merge(ctx context.Context, level Level, sources []Object) (Object, error) {
	if level == Segment || len(sources) == 0 {
		return Object{}, fmt.Errorf("cannot merge %d objects to a %s", len(sources), level)
	}
	first, last := sources[0], sources[len(sources)-1]
	merged := Object{Level: level, Generation: first.Generation, Start: first.Start, Next: last.Next}
	if last.Level == Segment {
		manifest, err := a.firstManifest(ctx, last)
		if err != nil {
			return Object{}, unmergeable(err)
		}
		merged.Next = manifest.Next()
	}
	if err := a.merged(ctx, merged); err != nil {
		return Object{}, err
	}
	if err := a.oneChain(ctx, merged, sources); err != nil {
		return Object{}, err
	}
	body, err := a.putFilled(ctx, merged.Name(), func(w io.Writer) error { return a.concatenate(ctx, w, merged, sources) })
	merged.Size = body.Bytes
	return merged, err
}

// oneChain is an ErrHole if another segment begins within one that is to be made of segments: it would count as held, and may be of
// another chain.
func (a *Archive) oneChain(ctx context.Context, merged Object, sources []Object) error {
	if merged.Level != Minute {
		return nil // of what was merged before
	}
	segments, err := a.Objects(ctx, merged.Generation, Segment, merged.Start)
	for _, other := range segments {
		of := func(source Object) bool { return source.Start == other.Start }
		if merged.covers(other.Start) && !slices.ContainsFunc(sources, of) {
			return fmt.Errorf("%w: %s begins within %s", ErrHole, other.Name(), merged.Name())
		}
	}
	return err
}

// merged looks for another object that holds the beginning of one.
func (a *Archive) merged(ctx context.Context, merged Object) error {
	levels := []Level{Hour}
	if merged.Level == Minute {
		levels = []Level{Minute, Hour}
	}
	other, found, err := a.covering(ctx, merged.Generation, merged.Start, levels...)
	if err == nil && found && other.Name() != merged.Name() {
		err = a.named(other.Name(), store.ErrExists)
	}
	return err
}

// concatenate writes the segments of sources, which must be those of merged, and of the generation's cluster: what another one has left
// there would seem to hold what comes in its place later.
func (a *Archive) concatenate(ctx context.Context, w io.Writer, merged Object, sources []Object) error {
	generation, err := a.generation(ctx, merged.Generation)
	if err != nil {
		return err
	}
	joint := &joint{next: merged.Start, of: generation.Cluster}
	for _, source := range sources {
		if source.Generation != merged.Generation || source.Start != joint.next {
			return fmt.Errorf("%w: %s is not at %s", ErrHole, source.Name(), joint.next)
		}
		if err := a.append(ctx, w, source, joint); err != nil {
			return err
		}
	}
	if joint.next != merged.Next {
		return fmt.Errorf("%w: %s would end at %s", ErrHole, merged.Name(), joint.next)
	}
	return nil
}

// append writes the segments of one object.
func (a *Archive) append(ctx context.Context, w io.Writer, source Object, joint *joint) error {
	content, err := a.fetch(ctx, source.Name(), 0, nil)
	if err != nil {
		return err
	}
	defer content.Close()
	reader := segment.NewReader(io.TeeReader(content, w), a.keys)
	for {
		manifest, err := reader.Next()
		if seal.Ended(err) {
			return nil
		}
		if err == nil {
			err = joint.follow(manifest)
		}
		if err != nil {
			return a.named(source.Name(), unmergeable(err))
		}
	}
}

// unmergeable makes a hole of what cannot be believed: it stays as it is, and keeps nothing else from being merged.
func unmergeable(err error) error {
	if Disbelieved(err) {
		return fmt.Errorf("%w: %w", ErrHole, err)
	}
	return err
}

// joint is where one segment ends and the next one must begin.
type joint struct {
	next   segment.Position
	digest segment.Digest // zero before the first segment
	of     string         // the cluster
}

var errJoint = errors.New("it doesn't go on from what is before it")

func (j *joint) follow(manifest segment.Manifest) error {
	started := j.digest != segment.Digest{}
	if manifest.Position != j.next || manifest.Cluster != j.of || started && manifest.Before != j.digest {
		return fmt.Errorf("%w: segment %s: %w", ErrHole, manifest.Position, errJoint)
	}
	j.next, j.digest = manifest.Next(), manifest.After
	return nil
}
