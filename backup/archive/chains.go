package archive

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sort"
	"time"

	"etcd-wrapper/backup/format"
)

// A Chain is a range of revisions that can all be restored: full snapshots and segments without a hole.
type Chain struct {
	Fulls   []KeptFull // usable ones, oldest first; at least one
	Objects []Object   // to read after the first full snapshot; the largest ones that cover the range
	From    int64      // revision of the first full snapshot
	To      int64      // last revision
	Begin   time.Time  // earliest restorable time: when From had become current, rounded up to the second
	End     time.Time  // latest time at which To is known to have been current: exact to the second by markers, to the hour in merged objects

	PastEnd    error // why what lies after its end cannot be read or does not follow; nil if nothing lies there
	Unverified error // why the object at its end is not part of it; nil if there is none

	index *index          // its objects
	end   format.Position // position after its last object
	bound format.Position // start of the next chain; zero if there is none
}

// holeError returns an ErrHole if an object starts after the chain's end. The objects are in order.
func (c Chain) holeError(objects []Object) error {
	i := slices.IndexFunc(objects, func(o Object) bool { return o.Start.Compare(c.end) > 0 })
	if i < 0 || len(c.Fulls) == 0 {
		return nil
	}
	return fmt.Errorf("%w: nothing starts at %s, and %s follows", ErrHole, c.end, objects[i].Name())
}

// findChains splits the full snapshots and objects of a generation into chains.
func (h *History) findChains(ctx context.Context, fulls []KeptFull, x *index) (chains []Chain, err error) {
	for i := 0; i < len(fulls); {
		if !fulls[i].Usable() {
			i++
			continue
		}
		chain, length, err := h.buildChain(ctx, fulls[i:], x)
		if err != nil {
			return nil, err
		}
		chains = append(chains, chain)
		i += length
	}
	return chains, nil
}

// buildChain builds the chain that starts with the first of fulls. It also returns how many of them the chain
// includes.
func (h *History) buildChain(ctx context.Context, fulls []KeptFull, x *index) (chain Chain, covered int, err error) {
	fulls[0].Passed = false // no segment leads to it
	first := fulls[0]
	chain = Chain{From: first.Revision, To: first.Revision, Begin: first.Since(), End: first.Since()}
	if chain.bound, err = h.nextChainStart(ctx, fulls, x); err != nil {
		return chain, 0, err
	}
	chain.index = x.until(chain.bound)
	end, err := h.followObjects(ctx, &chain, first)
	if err == nil {
		end, err = h.followFulls(ctx, &chain, fulls, end)
	}
	if err != nil {
		return chain, 0, err
	}
	chain.end = end
	for _, full := range fulls {
		if full.Err == nil && (full.Next.Compare(end) > 0 || full.BeginsChain() && full.Next != first.Next && !full.Passed) {
			break
		}
		covered++
		if full.Usable() && !full.Passed {
			chain.Fulls = append(chain.Fulls, full)
			chain.To, chain.End = max(chain.To, full.Revision), Later(chain.End, full.Time)
		}
	}
	chain.To = max(chain.To, end.Revision-1)
	return chain, covered, nil
}

// followObjects extends a chain from a full snapshot to the last object that can be verified, and returns the
// position after that.
func (h *History) followObjects(ctx context.Context, chain *Chain, full KeptFull) (format.Position, error) {
	for {
		chain.Objects = chain.index.sequence(full.Next)
		if len(chain.Objects) == 0 {
			return full.Next, nil
		}
		last := chain.Objects[len(chain.Objects)-1]
		end, at, err := h.reader.objectEnd(ctx, last, full.Cluster)
		if err == nil {
			chain.End = Later(chain.Begin, at)
		}
		if err == nil || !NotVerified(err) {
			return end, err
		}
		chain.Unverified = err
		chain.index = chain.index.remove(func(o Object) bool { return o.Name() == last.Name() })
	}
}

// followFulls checks that the chain continues after each of its full snapshots, as names only suggest. If no listed
// object starts there, one of three holds: the listing lacks the segment; the full snapshot lies within a segment, so
// nothing starts there; or the chain ends.
func (h *History) followFulls(ctx context.Context, chain *Chain, fulls []KeptFull, end format.Position) (format.Position, error) {
	for i := range fulls {
		full := &fulls[i]
		if full.Err != nil || full.Passed || full.Next.Compare(end) > 0 {
			continue
		}
		if _, found := chain.index.find(full.Next); found || chain.index.nextStart(full.Next).IsZero() {
			continue
		}
		hidden, err := h.unlistedSegment(ctx, full.Full)
		if err != nil {
			return end, err
		}
		if hidden != nil {
			chain.index = chain.index.add(*hidden)
		} else if full.Next == fulls[0].Next {
			continue // the chain consists of its first full snapshot
		} else if full.Passed, err = h.reader.continuesAcross(ctx, full.Full, chain.index); err != nil {
			return end, err
		} else if !full.Passed {
			chain.index = chain.index.endAt(full.Next, fmt.Errorf("%w: nothing starts at %s", ErrHole, full.Next))
		}
		if end, err = h.followObjects(ctx, chain, fulls[0]); err != nil {
			return end, err
		}
	}
	return end, nil
}

// unlistedSegment returns the segment after a full snapshot if it exists although no listing has it; nil otherwise.
func (h *History) unlistedSegment(ctx context.Context, full Full) (*Object, error) {
	object := Object{Level: Segment, Generation: full.Generation, Start: full.Next, Modified: full.Time}
	manifest, err := h.reader.firstManifest(ctx, object)
	if Unusable(err) || err == nil && (manifest.Before != full.Chain || manifest.Cluster != full.Cluster) {
		return nil, nil
	}
	return &object, err
}

// nextChainStart returns the position at which the chain after the first one starts; zero if there is none. Names do
// not show the hole before it. It sets Passed of the full snapshots that the first chain continues across.
func (h *History) nextChainStart(ctx context.Context, fulls []KeptFull, x *index) (format.Position, error) {
	for i := range fulls {
		full := &fulls[i]
		if full.Err != nil || !full.BeginsChain() || full.Next.Compare(fulls[0].Next) <= 0 {
			continue
		}
		passed, err := h.reader.continuesAcross(ctx, full.Full, x)
		if err != nil || !passed {
			return full.Next, err
		}
		full.Passed = true
	}
	return format.Position{}, nil
}

// continuesAcross reports whether the chain before a full snapshot continues after it, although the snapshot was made
// to start another one: two members may have started one each, or a writer had lost the leadership meanwhile. An
// object that cannot be verified continues nothing.
func (r *Reader) continuesAcross(ctx context.Context, full Full, x *index) (bool, error) {
	object, found := x.find(full.Next)
	if found && object.Start != full.Next {
		return true, nil // a merged object holds one chain
	}
	if !found {
		object, found = x.segmentBefore(full.Next)
	}
	if !found {
		return false, nil
	}
	manifest, err := r.firstManifest(ctx, object)
	if NotVerified(err) || err == nil && manifest.Cluster != full.Cluster {
		return false, nil
	}
	if manifest.Position == full.Next {
		return manifest.Before != full.Chain, err
	}
	return manifest.Next().Compare(full.Next) > 0, err
}

// objectEnd returns the position after an object, and a time until which it reaches at most.
func (r *Reader) objectEnd(ctx context.Context, object Object, cluster string) (format.Position, time.Time, error) {
	if object.Level != Segment {
		why, err := r.checkMerged(ctx, object)
		return object.Next, object.Modified, cmp.Or(why, err)
	}
	manifest, err := r.firstManifest(ctx, object)
	if err == nil && manifest.Cluster != cluster {
		err = r.foreignError(object.Name(), manifest.Cluster, cluster)
	}
	if err != nil {
		return format.Position{}, time.Time{}, err
	}
	return manifest.Next(), cmp.Or(manifest.To, object.Modified), nil
}

// Later returns the later of two times.
func Later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// An index finds the objects that hold segments by their positions.
type index struct {
	segments []Object // by position
	merged   []Object // by first position
	reach    []int    // for each of merged, the index of the one up to it that reaches farthest
	faults   faults
}

func newIndex(segments, merged []Object, known faults) *index {
	slices.SortStableFunc(merged, byStart)
	x := &index{segments: segments, merged: merged, reach: make([]int, len(merged)), faults: known}
	farthest := 0
	for i, object := range merged {
		if object.Next.Compare(merged[farthest].Next) >= 0 {
			farthest = i
		}
		x.reach[i] = farthest
	}
	return x
}

func byStart(a, b Object) int { return a.Start.Compare(b.Start) }

// list lists the segments of a generation from one position on, and the merged objects from another one on.
func (r *Reader) list(ctx context.Context, generation int, from, merged format.Position) (*index, error) {
	var of [3][]Object
	var err error
	for i, level := range []Level{Segment, Minute, Hour} { // in the order in which objects are merged, so that none is missed
		if of[i], err = r.Objects(ctx, generation, level, from); err != nil {
			return nil, err
		}
		from = merged
	}
	return newIndex(of[0], slices.Concat(of[1], of[2]), nil), nil
}

// indexed lists all objects of a generation that hold segments.
func (r *Reader) indexed(ctx context.Context, generation int) (*index, error) {
	x, err := r.list(ctx, generation, format.Position{}, format.Position{})
	if err != nil {
		return nil, err
	}
	pretend, err := r.invalidMerged(ctx, x.merged)
	return x.remove(func(o Object) bool { return pretend[o.Name()] }), err
}

// invalidMerged returns the names of merged objects that do not match their names. Members never merge twice,
// so only objects of a level that overlap are checked: one forged name that spans everything would hide everything.
func (r *Reader) invalidMerged(ctx context.Context, merged []Object) (map[string]bool, error) {
	farthest, overlap := map[Level]Object{}, map[string]Object{}
	for _, object := range merged {
		before := farthest[object.Level]
		if object.Start.Compare(before.Next) < 0 {
			overlap[object.Name()], overlap[before.Name()] = object, before
		}
		if object.Next.Compare(before.Next) > 0 {
			farthest[object.Level] = object
		}
	}
	looked, pretend := slices.Collect(maps.Values(overlap)), map[string]bool{}
	why := make([]error, len(looked))
	err := forEach(len(looked), func(i int) (err error) {
		why[i], err = r.checkMerged(ctx, looked[i])
		return err
	})
	for i, object := range looked {
		pretend[object.Name()] = why[i] != nil
	}
	return pretend, err
}

// checkMerged returns why a merged object does not match its name, by its manifests; nil if it does. The
// result is cached. err reports that it could not be read.
func (r *Reader) checkMerged(ctx context.Context, object Object) (why, err error) {
	if known, is := r.cache.Get(object.cacheKey()); is {
		return known.why, nil
	}
	_, why = r.lastManifest(ctx, object)
	if why != nil && !Unusable(why) {
		return nil, why
	}
	r.cache.Add(object.cacheKey(), objectInfo{why: why})
	return why, nil
}

// objects returns all objects by their first positions.
func (x *index) objects() []Object {
	all := slices.Concat(x.segments, x.merged)
	slices.SortStableFunc(all, byStart)
	return all
}

// find returns the object to read at a position: of several the one that reaches farthest.
func (x *index) find(position format.Position) (best Object, found bool) {
	if x == nil { // of a Path that is a single full snapshot
		return Object{}, false
	}
	if i := firstAfter(x.merged, position); i > 0 {
		if best = x.merged[x.reach[i-1]]; best.contains(position) {
			return best, true
		}
	}
	if i := firstAfter(x.segments, position); i > 0 && x.segments[i-1].Start == position {
		return x.segments[i-1], true
	}
	return Object{}, false
}

// firstAfter returns the index of the first object that starts after a position.
func firstAfter(objects []Object, position format.Position) int {
	return sort.Search(len(objects), func(i int) bool { return objects[i].Start.Compare(position) > 0 })
}

// nextStart returns the first position after another at which an object starts; zero if there is none.
func (x *index) nextStart(position format.Position) (next format.Position) {
	for _, objects := range [][]Object{x.segments, x.merged} {
		if i := firstAfter(objects, position); i < len(objects) && (next.IsZero() || objects[i].Start.Compare(next) < 0) {
			next = objects[i].Start
		}
	}
	return next
}

// segmentBefore returns the last segment that starts before a position.
func (x *index) segmentBefore(position format.Position) (Object, bool) {
	i, _ := slices.BinarySearchFunc(x.segments, position, func(o Object, p format.Position) int { return o.Start.Compare(p) })
	if i == 0 {
		return Object{}, false
	}
	return x.segments[i-1], true
}

// candidates returns the objects that reach beyond a position, sorted by how far they reach as their names say. A
// segment's name has only its start.
func (x *index) candidates(position format.Position) (all []Object) {
	end := func(o Object) format.Position {
		if o.Level == Segment {
			return o.Start
		}
		return o.Next
	}
	for _, object := range slices.Concat(x.merged, x.segments) {
		if o := object; o.Level == Segment && o.Start.Compare(position) >= 0 || o.Next.Compare(position) > 0 {
			all = append(all, object)
		}
	}
	slices.SortStableFunc(all, func(a, b Object) int { return end(a).Compare(end(b)) })
	return all
}

// until returns the index without the objects that start at a position or after it; all of it if that is zero.
func (x *index) until(bound format.Position) *index {
	if bound.IsZero() {
		return x
	}
	return x.remove(func(o Object) bool { return o.Start.Compare(bound) >= 0 })
}

// add returns the index with one more segment.
func (x *index) add(object Object) *index {
	segments := append(slices.Clone(x.segments), object)
	slices.SortStableFunc(segments, byStart)
	return newIndex(segments, x.merged, x.faults)
}

// endAt returns the index with nothing to read from a position on.
func (x *index) endAt(end format.Position, why error) *index {
	return newIndex(x.segments, x.merged, append(slices.Clone(x.faults), &Fault{From: end, Err: why}))
}

// remove returns the index without some objects.
func (x *index) remove(these func(Object) bool) *index {
	return newIndex(slices.DeleteFunc(slices.Clone(x.segments), these), slices.DeleteFunc(slices.Clone(x.merged), these), x.faults)
}

// sequence returns the objects to read from a position on, by their names. The name of a segment does not say where
// it ends, so it is taken to reach to the next object.
func (x *index) sequence(position format.Position) (objects []Object) {
	for {
		object, found := x.find(position)
		if !found {
			return objects
		}
		objects = append(objects, object)
		if position = object.Next; object.Level == Segment {
			if position = x.nextStart(object.Start); x.faults.contains(object.Start, position) {
				return objects
			}
		}
	}
}
