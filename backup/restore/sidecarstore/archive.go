package sidecarstore

import (
	"context"
	"fmt"
	"slices"
	"time"

	"etcd-wrapper/backup/store"
)

// Archive is what a sidecar keeps in a store, as it was when it was listed. It may be read from any goroutine.
type Archive struct {
	Chains []Chain  // oldest first
	Stray  []Object // deltas that are older than every full: nothing can be made of them

	store store.Store
}

// Chain is a full and the deltas until the next full, by their names.
type Chain struct {
	Full   Object
	Deltas []Object // by their last revisions; two sidecars at a time leave some that overlap
}

// Reach is the last object to which the names of the chain lead without a gap: its full if no delta follows.
func (c Chain) Reach() Object {
	reached := c.Full
	for _, delta := range byFirst(c.Deltas) {
		if delta.First > reached.Last+1 {
			break
		}
		if delta.Last > reached.Last {
			reached = delta
		}
	}
	return reached
}

// List finds the sidecar's backups in s. An archive without any is no error. Errors are the store's.
func List(ctx context.Context, s store.Store) (*Archive, error) {
	archive := &Archive{store: s}
	objects, err := find(ctx, s)
	if err != nil {
		return nil, fmt.Errorf("cannot list the sidecar's backups: %w", err)
	}
	slices.SortFunc(objects, inSequence)
	for _, object := range objects {
		last := len(archive.Chains) - 1
		switch {
		case object.Full:
			archive.Chains = append(archive.Chains, Chain{Full: object})
		case last < 0:
			archive.Stray = append(archive.Stray, object)
		default:
			archive.Chains[last].Deltas = append(archive.Chains[last].Deltas, object)
		}
	}
	return archive, nil
}

// find lists only what can be the sidecar's, as much else may be kept beside it.
func find(ctx context.Context, s store.Store) (objects []Object, err error) {
	chunks := map[string][]store.Object{}
	for _, prefix := range []string{"Backup-", "Full-", "Incr-", "v1/", "v2/"} {
		for stored, err := range s.List(ctx, prefix, "") {
			if err != nil {
				return nil, err
			}
			if whole := chunkOf(stored.Name); whole != "" {
				chunks[whole] = append(chunks[whole], stored)
			} else if object, ours := parse(stored); ours {
				objects = append(objects, object)
			}
		}
	}
	for i := range objects {
		objects[i].gather(chunks[objects[i].Name])
	}
	return objects, nil
}

// gather reads chunks in the place of an object that is empty. Chunks of one that isn't are left over from its upload; those
// without an object are an upload that never ended.
func (o *Object) gather(chunks []store.Object) {
	if o.Size > 0 || len(chunks) == 0 {
		return
	}
	o.parts = nil
	for _, chunk := range chunks {
		o.parts = append(o.parts, chunk.Name)
		o.Size += chunk.Size
	}
}

// Target is the state that is asked for: the one after Revision; or else the one at Time; or else the last that is kept.
type Target struct {
	Revision int64
	Time     time.Time
}

// String is the target for people.
func (t Target) String() string {
	switch {
	case t.Revision > 0:
		return fmt.Sprintf("revision %d", t.Revision)
	case !t.Time.IsZero():
		return t.Time.UTC().Format(time.RFC3339Nano)
	default:
		return "the last revision"
	}
}

// Fulls are those to begin with on the way to a target, the best one first. The next one is for when that is damaged, or turns
// out to be ErrNewer. The error says that none is old enough, or that there is none.
func (a *Archive) Fulls(to Target) (fulls []Object, err error) {
	for _, chain := range slices.Backward(a.Chains) {
		if chain.Full.suits(to) {
			fulls = append(fulls, chain.Full)
		}
	}
	switch {
	case len(fulls) > 0:
		return fulls, nil
	case len(a.Chains) == 0:
		return nil, fmt.Errorf("%w: there is no full backup of the sidecar's in %s", ErrNotKept, a.store)
	default:
		oldest := a.Chains[0].Full
		return nil, fmt.Errorf("%w: %s is before the oldest full backup, %s of %s", ErrNotKept, to, oldest.Name,
			oldest.Created.Format(time.RFC3339))
	}
}

// suits is false for a full that is newer than the target, as far as its name tells.
func (o Object) suits(to Target) bool {
	switch {
	case to.Revision > 0:
		return o.Last <= to.Revision
	case !to.Time.IsZero():
		return !o.Created.Add(time.Second).After(to.Time) // the name has the second in which it was taken
	default:
		return true
	}
}

// after are the deltas that have revisions later than the given one, by their first revisions.
func (a *Archive) after(revision int64) (deltas []Object) {
	for _, chain := range a.Chains {
		deltas = append(deltas, chain.Deltas...)
	}
	deltas = slices.DeleteFunc(append(deltas, a.Stray...), func(o Object) bool { return o.Last <= revision })
	return byFirst(deltas)
}

func byFirst(deltas []Object) []Object {
	return slices.SortedStableFunc(slices.Values(deltas), func(a, b Object) int { return int(min(max(a.First-b.First, -1), 1)) })
}
