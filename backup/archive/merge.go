package archive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"etcd-wrapper/backup/format/seal"
	"etcd-wrapper/backup/format/segment"
)

// Merged is an object that holds the segments of others, and what these segments are.
type Merged struct {
	Object
	Segments []segment.Manifest
}

// Merge writes the segments of sources, one after the other, into one object of a level. The sources must follow one another,
// and span an hour at most. Each is read to its end and checked on the way as far as that needs no identity. It may be repeated. The
// sources stay until somebody deletes them, who must have seen that the merged object holds them: Merge's caller has, and whoever
// compares what Examine returns of both.
//
// ErrHole says that the sources don't follow one another, that one of them cannot be believed, or that another segment begins within
// them: they stay as they are.
func (a *Archive) Merge(ctx context.Context, level Level, sources []Object) (Merged, error) {
	if level == Segment || len(sources) == 0 {
		return Merged{}, fmt.Errorf("cannot merge %d objects to a %s", len(sources), level)
	}
	first, last := sources[0], sources[len(sources)-1]
	merged := Merged{Object: Object{Level: level, Generation: first.Generation, Start: first.Start, Next: last.Next}}
	if last.Level == Segment {
		manifest, err := a.firstManifest(ctx, last)
		if err != nil {
			return Merged{}, unmergeable(err)
		}
		merged.Next = manifest.Next()
	}
	if err := a.oneChain(ctx, merged.Object, sources); err != nil {
		return Merged{}, err
	}
	body, err := a.putFilled(ctx, merged.Name(), func(w io.Writer) (err error) {
		merged.Segments, err = a.concatenate(ctx, w, merged.Object, sources)
		return err
	})
	merged.Size = body.Bytes
	return merged, err
}

// Examine reads an object to its end and returns the manifests of the segments that it holds: they follow one another from where
// its name says that it begins to where it says that it ends, and their bodies are what they state. What is not so is an error for
// which Disbelieved holds, or ErrHole.
func (a *Archive) Examine(ctx context.Context, object Object) ([]segment.Manifest, error) {
	generation, err := a.generation(ctx, object.Generation)
	if err != nil {
		return nil, err
	}
	joint := &joint{next: object.Start, of: generation.Cluster}
	if err := a.append(ctx, io.Discard, object, joint); err != nil {
		return nil, err
	}
	if len(joint.segments) == 0 || object.Level != Segment && joint.next != object.Next {
		return nil, a.damaged(object.Name())
	}
	return joint.segments, nil
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

// concatenate writes the segments of sources, which must be those of merged, and of the generation's cluster: what another one has left
// there would seem to hold what comes in its place later.
func (a *Archive) concatenate(ctx context.Context, w io.Writer, merged Object, sources []Object) ([]segment.Manifest, error) {
	generation, err := a.generation(ctx, merged.Generation)
	if err != nil {
		return nil, err
	}
	joint := &joint{next: merged.Start, of: generation.Cluster}
	for _, source := range sources {
		if source.Generation != merged.Generation || source.Start != joint.next {
			return nil, fmt.Errorf("%w: %s is not at %s", ErrHole, source.Name(), joint.next)
		}
		if err := a.append(ctx, w, source, joint); err != nil {
			return nil, unmergeable(err)
		}
	}
	if joint.next != merged.Next {
		return nil, fmt.Errorf("%w: %s would end at %s", ErrHole, merged.Name(), joint.next)
	}
	return joint.segments, nil
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
			return a.named(source.Name(), err)
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
	next     segment.Position
	of       string // the cluster
	segments []segment.Manifest
}

var errJoint = errors.New("it doesn't go on from what is before it")

func (j *joint) follow(manifest segment.Manifest) error {
	joins := len(j.segments) == 0 || manifest.Before == j.segments[len(j.segments)-1].After
	if manifest.Position != j.next || manifest.Cluster != j.of || !joins {
		return fmt.Errorf("%w: segment %s: %w", ErrHole, manifest.Position, errJoint)
	}
	j.next, j.segments = manifest.Next(), append(j.segments, manifest)
	return nil
}
