package archive

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"etcd-wrapper/backup/format"
)

// A Target is the state to restore. A target without a revision or time selects the latest state.
type Target struct {
	Revision   int64     // 0 if not set
	Time       time.Time // selects the revision that was current at this time; zero if unset
	Generation int       // 0 selects the newest generation that contains the target
}

// Latest reports whether the target has neither a revision nor a time.
func (t Target) Latest() bool { return t.Revision == 0 && t.Time.IsZero() }

// String describes the target as a phrase for use in messages.
func (t Target) String() string {
	switch {
	case t.Revision != 0:
		return fmt.Sprintf("revision %d", t.Revision)
	case !t.Time.IsZero():
		return t.Time.UTC().Format(time.RFC3339Nano)
	default:
		return "the latest revision"
	}
}

// A Path lists the objects needed to restore a revision.
type Path struct {
	Generation Generation
	Full       Full
	Objects    []Object  // objects to read after Full, in order
	Revision   int64     // revision to restore; rows of later revisions are ignored
	Time       time.Time // time at which Revision was current; zero if unknown
	PastEnd    error     // why later backups cannot be read; nil if there are none or the target is not the latest revision
	Reported   int64     // highest revision in the generation's object names; 0 unless Target.Latest

	// Fetched, if not nil, is called by Read with the number of bytes read. Callers set Fetched after Find has
	// returned.
	Fetched func(bytes int)

	end    format.Position // the path ends before this position; zero if only Revision limits the path
	found  bool            // Find returned the path; false if the caller created it for a single full snapshot
	chain  []Object        // objects from Full to the end of the chain
	target Target
	faults faultList // objects that the path must avoid
}

// Lost returns the number of revisions that object names show but that cannot be read, because they are after the end
// of the path. The actual number may be higher, because the name of a segment does not contain its last revision.
func (p Path) Lost() int64 { return max(0, p.Reported-p.Revision) }

// truncate returns the part of a path before end, where a fault was found. The fault must be the last one in known.
func (p Path) truncate(end format.Position, known faultList) Path {
	p.Revision, p.end, p.faults, p.PastEnd = end.Revision-1, end, known, known[len(known)-1].Err
	p.Objects = slices.DeleteFunc(slices.Clone(p.Objects), func(o Object) bool { return o.Start.Compare(end) >= 0 })
	return p
}

// Find returns the path to a target. A time after the end of the newest chain selects the end of that chain, unless
// newer backups are known to exist. A time between the last chain of a generation and the start of the next
// generation selects the end of that chain. The latest revision is the last revision of the newest generation. If the
// newest generation has no backups yet, the latest revision is the revision that was restored to create it. If the
// target cannot be restored, Find returns ErrNotKept with a list of available targets.
func (r *Reader) Find(ctx context.Context, target Target) (Path, error) {
	return r.find(ctx, target, nil)
}

// find is like Find, but avoids the objects in known and any other object that turns out to be unusable.
func (r *Reader) find(ctx context.Context, target Target, known faultList) (Path, error) {
	for {
		history, err := r.historyWithout(ctx, known)
		if err != nil {
			return Path{faults: known}, err
		}
		path, err := history.find(ctx, target)
		path.faults = known
		var fault *Fault
		if !errors.As(err, &fault) {
			return path, err
		}
		more, added := known.add(fault)
		if !added {
			return path, err
		}
		known = more
	}
}

func (h *History) find(ctx context.Context, target Target) (Path, error) {
	sought := h.resolve(target)
	for g := len(h.Generations) - 1; g >= 0; g-- {
		generation := h.Generations[g]
		if sought.Generation != 0 && sought.Generation != generation.Number {
			continue
		}
		for c := len(generation.Chains) - 1; c >= 0; c-- {
			chain := generation.Chains[c]
			if chain.contains(sought, h.validUntil(g, c)) {
				return h.path(ctx, generation, chain, sought)
			}
		}
	}
	return Path{}, h.rangeError(target)
}

// resolve replaces a target without a revision or time with the newest generation. If the newest generation has no
// backups yet, resolve returns the revision that was restored to create it.
func (h *History) resolve(target Target) Target {
	newest := h.Newest()
	if !target.Latest() || target.Generation != 0 || newest == nil {
		return target
	}
	if newest.Parent != 0 && len(newest.Fulls) == 0 && len(newest.Objects) == 0 {
		return Target{Generation: newest.Parent, Revision: newest.ParentRevision}
	}
	return Target{Generation: newest.Number}
}

// validUntil returns the time at which the chain's last revision was replaced by a newer one, if known. The last
// chain of a generation is valid until the next generation starts.
func (h *History) validUntil(g, c int) time.Time {
	switch chains := h.Generations[g].Chains; {
	case c < len(chains)-1:
		return chains[c].End
	case g < len(h.Generations)-1:
		return MaxTime(chains[c].End, h.Generations[g+1].Created.Add(-1))
	default:
		return endOfTime
	}
}

// contains reports whether the chain includes a target. until is the time up to which the chain's last revision was
// current.
func (c Chain) contains(target Target, until time.Time) bool {
	switch {
	case target.Revision != 0:
		return c.From <= target.Revision && target.Revision <= c.To
	case !target.Time.IsZero():
		return !target.Time.Before(c.Begin) && !target.Time.After(until)
	default:
		return true
	}
}

// path returns the path to a target in the chain.
func (h *History) path(ctx context.Context, generation GenerationContents, chain Chain, target Target) (Path, error) {
	path := Path{
		Generation: generation.Generation, Full: chain.Fulls[0].Full, Revision: chain.To,
		Time: chain.End, found: true, target: target,
	}
	if target.Revision != 0 {
		path.Revision, path.Time = target.Revision, time.Time{}
	}
	for _, full := range chain.Fulls {
		if full.Revision <= path.Revision && (target.Time.IsZero() || !full.ValidFrom().After(target.Time)) {
			path.Full = full.Full
		}
	}
	path.chain = slices.DeleteFunc(slices.Clone(chain.Objects), func(o Object) bool { return o.Next.Compare(path.Full.Next) <= 0 })
	switch {
	case target.Latest():
		if path.PastEnd, path.Reported = chain.PastEnd, chain.To; errors.Is(generation.Ignored, format.ErrUntrusted) {
			// The ignored object may be a valid backup with another signing key.
			path.PastEnd = cmp.Or(path.PastEnd, generation.Ignored)
		}
		if path.PastEnd != nil {
			path.Reported = maxNamed(generation.Fulls, generation.Objects)
		}
	case target.Revision == 0:
		if chain.PastEnd != nil && target.Time.After(chain.certain) {
			return Path{}, fmt.Errorf("%s is %w: backups can only be read up to revision %d (%s): %w", target, ErrNotKept,
				chain.To, chain.certain.UTC().Format(time.RFC3339), chain.PastEnd)
		}
		known, err := h.markerBefore(ctx, path, target.Time)
		if err != nil {
			return Path{}, err
		}
		path.Revision, path.Time = min(known.Revision, chain.To), known.Time
		if known.Time.After(target.Time) { // the clock of the member that wrote the marker was ahead
			path.Time = target.Time
		}
	}
	for _, object := range path.chain {
		if object.Start.Revision <= path.Revision+1 {
			path.Objects = append(path.Objects, object)
		}
	}
	return path, nil
}

// rangeError returns an error that lists the available ranges and explains why later revisions cannot be read.
func (h *History) rangeError(target Target) error {
	err := fmt.Errorf("%s is %w in %s; restore points: %s", target, ErrNotKept, h.reader.store, h.describeRanges())
	if newest := h.Newest(); newest != nil && newest.pastEnd() != nil {
		err = fmt.Errorf("%w; later revisions cannot be read: %w", err, newest.pastEnd())
	}
	return err
}

// maxRanges limits the number of ranges that an error lists.
const maxRanges = 3

// describeRanges lists the newest ranges of revisions that can be restored.
func (h *History) describeRanges() string {
	var all []string
	for _, generation := range h.Generations {
		for _, chain := range generation.Chains {
			all = append(all, fmt.Sprintf("revisions %d to %d (%s to %s)", chain.From, chain.To,
				chain.Begin.UTC().Format(time.RFC3339), chain.End.UTC().Format(time.RFC3339)))
		}
	}
	switch older := len(all) - maxRanges; {
	case len(all) == 0:
		return "none"
	case older > 0:
		return fmt.Sprintf("%s; older ranges not listed: %d", strings.Join(all[older:], ", "), older)
	default:
		return strings.Join(all, ", ")
	}
}

// Fallback returns another path to the same target after a Fault, using an older full snapshot or different objects.
// If the target was the latest revision or a named full snapshot, the new path may end at an earlier revision.
// Callers must compare the revisions to report how many were lost. Fallback returns ErrNotKept if there is no other
// path, and returns cause unchanged if it is not a Fault.
func (r *Reader) Fallback(ctx context.Context, path Path, cause error) (Path, error) {
	var fault *Fault
	if !errors.As(cause, &fault) {
		return Path{}, cause
	}
	known, added := path.faults.add(fault)
	if !added {
		return Path{}, cause
	}
	if !path.found {
		return r.fallbackFull(ctx, path, known)
	}
	target := path.target
	target.Generation = path.Generation.Number
	if !target.Latest() {
		target.Revision = path.Revision
	}
	other, err := r.find(ctx, target, known)
	if target.Latest() && !fault.From.IsZero() && (errors.Is(err, ErrNotKept) || err == nil && other.Revision < fault.From.Revision-1) {
		return path.truncate(fault.From, known), nil
	}
	if other.Revision == path.Revision {
		other.Time = path.Time
	}
	return other, err
}

// fallbackFull returns another path to the revision of a full snapshot, or to the last readable revision before it.
func (r *Reader) fallbackFull(ctx context.Context, path Path, known faultList) (Path, error) {
	exact := Target{Generation: path.Generation.Number, Revision: path.Revision}
	other, err := r.find(ctx, exact, known)
	if !errors.Is(err, ErrNotKept) {
		return other, err
	}
	latest, latestErr := r.find(ctx, Target{Generation: path.Generation.Number}, known)
	if latestErr != nil || latest.Revision > path.Revision {
		return Path{}, err
	}
	return latest, nil
}

// endOfTime is later than any marker.
var endOfTime = time.Unix(1<<40, 0)

// markerBefore returns the last marker up to a time in the objects after a path's full snapshot. The full snapshot is
// treated as a marker at ValidFrom, because the snapshot's time is truncated to seconds.
func (h *History) markerBefore(ctx context.Context, path Path, t time.Time) (known format.Marker, err error) {
	known = format.Marker{Revision: path.Full.Revision, Time: path.Full.ValidFrom()}
	times := make([]time.Time, len(path.chain)) // times of the first markers; zero for an object without markers
	if err := forEach(len(times), func(i int) error {
		manifest, err := h.reader.firstManifest(ctx, path.chain[i])
		times[i] = manifest.From
		return asFault(err, path.chain[i].Name(), path.chain[i].Start)
	}); err != nil {
		return known, err
	}
	count := 1 + lastIndex(times, func(at time.Time) bool { return !at.IsZero() && !at.After(t) })
	if stored := countByStoreClock(path.chain, times, count, t); stored > count {
		count, t = stored, endOfTime // ignore the markers
	}
	if count == 0 {
		return known, nil
	}
	last := path.chain[count-1]
	for found, err := range h.reader.records(ctx, last, path.Generation) {
		if err != nil {
			return known, asFault(err, last.Name(), last.Start)
		}
		if found.From.After(t) {
			break
		}
		if marker, ok := found.Record.(*format.Marker); ok && !marker.Time.After(t) && marker.Revision > known.Revision {
			known = *marker
		}
	}
	return known, nil
}

// lastIndex returns the index of the last element that satisfies fits, or -1.
func lastIndex[T any](all []T, fits func(T) bool) int {
	for i, one := range slices.Backward(all) {
		if fits(one) {
			return i
		}
	}
	return -1
}

// clockTolerance is the largest difference between a marker's time and the object's creation time that is ignored.
const clockTolerance = time.Minute

// countByStoreClock returns the number of objects that existed at t. The argument count is that number according to
// the markers, which is too low if the clock of the member that wrote the objects was ahead. In that case, the
// creation times according to the store's clock are used instead. The case is recognized by consecutive objects with
// the same marker time: marker times never decrease, so after a member's clock was ahead, other members repeat its
// last marker time until their own clocks catch up. Without such objects, the store's clock may be the wrong one.
func countByStoreClock(objects []Object, times []time.Time, count int, t time.Time) int {
	for i := count + 1; i < len(objects); i++ {
		if times[i].Equal(times[i-1]) && times[i].Sub(objects[i].Modified) > clockTolerance {
			return max(count, 1+lastIndex(objects, func(o Object) bool { return !o.Modified.After(t) }))
		}
	}
	return count
}
