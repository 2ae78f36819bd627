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

// Chain is a range of revisions that can all be restored: fulls and segments without a hole.
type Chain struct {
	Fulls   []KeptFull // that a restore may begin with, oldest first; at least one
	Objects []Object   // to read behind the first full: the largest that there are
	From    int64      // the first full's revision
	To      int64      // the last revision that is kept
	Begin   time.Time  // from when on a time can be gone back to: when From had become the present, to the second
	End     time.Time  // when To was still the present, as far as is known: markers tell it to the second, merged objects to the hour

	PastEnd    error // why what lies past its end cannot be read, or does not follow it; nil if nothing does, or what was begun anew
	Unverified error // why the object that lies there is no part of it; nil if there is none

	index *index          // what belongs to it
	end   format.Position // what begins here doesn't, or isn't there
	bound format.Position // what begins here or behind it doesn't; zero if nothing does
}

// hole is an ErrHole if some of the objects, which are in order, lie behind the chain's end: nothing leads there.
func (c Chain) hole(objects []Object) error {
	i := slices.IndexFunc(objects, func(o Object) bool { return o.Start.Compare(c.end) > 0 })
	if i < 0 || len(c.Fulls) == 0 {
		return nil
	}
	return fmt.Errorf("%w: nothing begins at %s, and %s follows", ErrHole, c.end, objects[i].Name())
}

// chains finds those that fulls begin.
func (h *History) chains(ctx context.Context, fulls []KeptFull, x *index) (chains []Chain, err error) {
	for i := 0; i < len(fulls); {
		if !fulls[i].Usable() {
			i++
			continue
		}
		chain, length, err := h.chain(ctx, fulls[i:], x)
		if err != nil {
			return nil, err
		}
		chains = append(chains, chain)
		i += length
	}
	return chains, nil
}

// chain follows the one that begins with the first of fulls. It returns how many of them it covers.
func (h *History) chain(ctx context.Context, fulls []KeptFull, x *index) (chain Chain, covered int, err error) {
	fulls[0].Passed = false // nothing leads to it
	first := fulls[0]
	chain = Chain{From: first.Revision, To: first.Revision, Begin: first.Since(), End: first.Since()}
	if chain.bound, err = h.nextChain(ctx, fulls, x); err != nil {
		return chain, 0, err
	}
	chain.index = x.before(chain.bound)
	end, err := h.lead(ctx, &chain, first)
	if err == nil {
		end, err = h.leadAcross(ctx, &chain, fulls, end)
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

// lead follows the objects behind a full to the last one that can be believed, and returns where that ends.
func (h *History) lead(ctx context.Context, chain *Chain, full KeptFull) (format.Position, error) {
	for {
		chain.Objects = chain.index.follow(full.Next)
		if len(chain.Objects) == 0 {
			return full.Next, nil
		}
		last := chain.Objects[len(chain.Objects)-1]
		end, at, err := h.reader.end(ctx, last, full.Cluster)
		if err == nil {
			chain.End = Later(chain.Begin, at)
		}
		if err == nil || !NotVerified(err) {
			return end, err
		}
		chain.Unverified = err
		chain.index = chain.index.without(func(o Object) bool { return o.Name() == last.Name() })
	}
}

// leadAcross looks whether the chain that ends somewhere by the names of its objects goes on behind each of its fulls. Where nothing is
// listed that begins there, the segment may be missing from the listing alone, the full may lie within a segment, so that nothing
// leads on from it, or the chain ends there.
func (h *History) leadAcross(ctx context.Context, chain *Chain, fulls []KeptFull, end format.Position) (format.Position, error) {
	for i := range fulls {
		full := &fulls[i]
		if full.Err != nil || full.Passed || full.Next.Compare(end) > 0 {
			continue
		}
		if _, found := chain.index.at(full.Next); found || chain.index.after(full.Next).IsZero() {
			continue
		}
		hidden, err := h.hiddenAt(ctx, full.Full)
		if err != nil {
			return end, err
		}
		if hidden != nil {
			chain.index = chain.index.with(*hidden)
		} else if full.Next == fulls[0].Next {
			continue // the chain has no more than its first full
		} else if full.Passed, err = h.reader.passed(ctx, full.Full, chain.index); err != nil {
			return end, err
		} else if !full.Passed {
			chain.index = chain.index.upTo(full.Next, fmt.Errorf("%w: nothing begins at %s", ErrHole, full.Next))
		}
		if end, err = h.lead(ctx, chain, fulls[0]); err != nil {
			return end, err
		}
	}
	return end, nil
}

// hiddenAt is the segment behind a full that no listing has, though it is there; nil if there is none.
func (h *History) hiddenAt(ctx context.Context, full Full) (*Object, error) {
	object := Object{Level: Segment, Generation: full.Generation, Start: full.Next, Modified: full.Time}
	manifest, err := h.reader.firstManifest(ctx, object)
	if Unusable(err) || err == nil && (manifest.Before != full.Chain || manifest.Cluster != full.Cluster) {
		return nil, nil
	}
	return &object, err
}

// nextChain is where the chain behind the one of the first full begins; zero if there is none. There is a hole before it, which
// names don't show. It notes which fulls the chain has passed.
func (h *History) nextChain(ctx context.Context, fulls []KeptFull, x *index) (format.Position, error) {
	for i := range fulls {
		full := &fulls[i]
		if full.Err != nil || !full.BeginsChain() || full.Next.Compare(fulls[0].Next) <= 0 {
			continue
		}
		passed, err := h.reader.passed(ctx, full.Full, x)
		if err != nil || !passed {
			return full.Next, err
		}
		full.Passed = true
	}
	return format.Position{}, nil
}

// passed tells whether the chain before a full goes on across it, though it was made to begin another one: two members may have
// made one each, or one had lost its office meanwhile. What cannot be believed goes nowhere.
func (r *Reader) passed(ctx context.Context, full Full, x *index) (bool, error) {
	object, found := x.at(full.Next)
	if found && object.Start != full.Next {
		return true, nil // what was merged is of one chain
	}
	if !found {
		object, found = x.lastBefore(full.Next)
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

// end tells where an object of a cluster ends, and until when at most. What was merged is of the generation's own.
func (r *Reader) end(ctx context.Context, object Object, cluster string) (format.Position, time.Time, error) {
	if object.Level != Segment {
		why, err := r.pretence(ctx, object)
		return object.Next, object.Modified, cmp.Or(why, err)
	}
	manifest, err := r.firstManifest(ctx, object)
	if err == nil && manifest.Cluster != cluster {
		err = r.anothers(object.Name(), manifest.Cluster, cluster)
	}
	if err != nil {
		return format.Position{}, time.Time{}, err
	}
	return manifest.Next(), cmp.Or(manifest.To, object.Modified), nil
}

// Later is the later one of two times.
func Later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// index finds the objects that hold segments by position.
type index struct {
	segments []Object // by position
	merged   []Object // by first position
	reach    []int    // for each of merged: which one, of those up to it, reaches farthest
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

// list lists what holds segments in a generation: segments from one position on, and what was merged from another one on.
func (r *Reader) list(ctx context.Context, generation int, from, merged format.Position) (*index, error) {
	var of [3][]Object
	var err error
	for i, level := range []Level{Segment, Minute, Hour} { // in the order in which they come and go: nothing is missed
		if of[i], err = r.Objects(ctx, generation, level, from); err != nil {
			return nil, err
		}
		from = merged
	}
	return newIndex(of[0], slices.Concat(of[1], of[2]), nil), nil
}

// indexed lists everything that holds segments in a generation.
func (r *Reader) indexed(ctx context.Context, generation int) (*index, error) {
	x, err := r.list(ctx, generation, format.Position{}, format.Position{})
	if err != nil {
		return nil, err
	}
	pretend, err := r.pretenders(ctx, x.merged)
	return x.without(func(o Object) bool { return pretend[o.Name()] }), err
}

// pretenders are the names of merged objects, which are in order, that are not what these say. Members merge what nobody has merged before,
// so objects of a level that overlap are looked into: whoever may put objects chooses names, and a name that spans everything would hide
// everything.
func (r *Reader) pretenders(ctx context.Context, merged []Object) (map[string]bool, error) {
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
	err := each(len(looked), func(i int) (err error) {
		why[i], err = r.pretence(ctx, looked[i])
		return err
	})
	for i, object := range looked {
		pretend[object.Name()] = why[i] != nil
	}
	return pretend, err
}

// pretence is why a merged object is not what its name says, by the manifests in it; nil if it is. That is remembered. The error
// says that it could not be read.
func (r *Reader) pretence(ctx context.Context, object Object) (why, err error) {
	if known, is := r.seen.Get(object.listed()); is {
		return known.why, nil
	}
	_, why = r.lastManifest(ctx, object)
	if why != nil && !Unusable(why) {
		return nil, why
	}
	r.seen.Add(object.listed(), seen{why: why})
	return why, nil
}

// all returns the objects by their first positions.
func (x *index) all() []Object {
	all := slices.Concat(x.segments, x.merged)
	slices.SortStableFunc(all, byStart)
	return all
}

// at is the object to read for what begins at a position: the one that reaches farthest.
func (x *index) at(position format.Position) (best Object, found bool) {
	if x == nil { // of a path that is a full and nothing else
		return Object{}, false
	}
	if i := firstAfter(x.merged, position); i > 0 {
		if best = x.merged[x.reach[i-1]]; best.covers(position) {
			return best, true
		}
	}
	if i := firstAfter(x.segments, position); i > 0 && x.segments[i-1].Start == position {
		return x.segments[i-1], true
	}
	return Object{}, false
}

// firstAfter is the index of the first object that begins behind a position.
func firstAfter(objects []Object, position format.Position) int {
	return sort.Search(len(objects), func(i int) bool { return objects[i].Start.Compare(position) > 0 })
}

// after is the first position behind another that an object begins at; zero if there is none.
func (x *index) after(position format.Position) (next format.Position) {
	for _, objects := range [][]Object{x.segments, x.merged} {
		if i := firstAfter(objects, position); i < len(objects) && (next.IsZero() || objects[i].Start.Compare(next) < 0) {
			next = objects[i].Start
		}
	}
	return next
}

// lastBefore is the segment that begins last before a position.
func (x *index) lastBefore(position format.Position) (Object, bool) {
	i, _ := slices.BinarySearchFunc(x.segments, position, func(o Object, p format.Position) int { return o.Start.Compare(p) })
	if i == 0 {
		return Object{}, false
	}
	return x.segments[i-1], true
}

// reaching returns the objects that reach beyond a position, those that reach farthest last. A segment does not tell where it ends.
func (x *index) reaching(position format.Position) (all []Object) {
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

// before is the index without what begins at a position or behind it; all of it if that is zero.
func (x *index) before(bound format.Position) *index {
	if bound.IsZero() {
		return x
	}
	return x.without(func(o Object) bool { return o.Start.Compare(bound) >= 0 })
}

// with is the index and one more segment.
func (x *index) with(object Object) *index {
	segments := append(slices.Clone(x.segments), object)
	slices.SortStableFunc(segments, byStart)
	return newIndex(segments, x.merged, x.faults)
}

// upTo is the index with nothing to be read at a position, or behind it.
func (x *index) upTo(end format.Position, why error) *index {
	return newIndex(x.segments, x.merged, append(slices.Clone(x.faults), &Fault{From: end, Err: why}))
}

// without is the index but for some objects.
func (x *index) without(these func(Object) bool) *index {
	return newIndex(slices.DeleteFunc(slices.Clone(x.segments), these), slices.DeleteFunc(slices.Clone(x.merged), these), x.faults)
}

// follow returns the objects to read from a position on, by their names: a segment's doesn't tell where it ends, so it is taken
// to end where the next object begins.
func (x *index) follow(position format.Position) (objects []Object) {
	for {
		object, found := x.at(position)
		if !found {
			return objects
		}
		objects = append(objects, object)
		if position = object.Next; object.Level == Segment {
			if position = x.after(object.Start); x.faults.between(object.Start, position) {
				return objects
			}
		}
	}
}
