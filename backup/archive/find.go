package archive

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"etcd-wrapper/backup/format"
)

// Target is what to go back to. With neither revision nor time it is the latest there is.
type Target struct {
	Revision   int64     // 0 if it is not asked for
	Time       time.Time // the last revision that there was at that time; zero if it is not asked for
	Generation int       // 0 means the newest that has it
}

// Latest tells whether neither a revision nor a time is asked for.
func (t Target) Latest() bool { return t.Revision == 0 && t.Time.IsZero() }

// String is for people.
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

// Path is how to get to a revision.
type Path struct {
	Generation Generation
	Full       Full
	Objects    []Object  // to read behind it, in order; none if the full is all
	Revision   int64     // no row beyond it is read
	Time       time.Time // when it was the present, as far as is known
	PastEnd    error     // why what lies past the latest revision cannot be read; nil if nothing does, or if another one is the target
	Reported   int64     // the last revision that names report, of the path's generation; 0 if another one than the latest is the target

	// Fetched is told of bytes of objects as Read reads them, if it is not nil. Whoever reads sets it.
	Fetched func(bytes int)

	index *index
	bound format.Position // of the chain
	end   format.Position // nothing is read from there on; zero means that Revision alone is the end

	target Target
	faults faults // that it does not lead by
}

// Lost is how many revisions at least lie behind the path's and cannot be read: names report them. What no name reports has a
// PastEnd all the same.
func (p Path) Lost() int64 { return max(0, p.Reported-p.Revision) }

// named tells whether it is a full alone, which nobody has looked for.
func (p Path) named() bool { return p.index == nil }

// upTo is the part of a path that was read before something was missing.
func (p Path) upTo(end format.Position, known faults) Path {
	p.Revision, p.end, p.faults, p.PastEnd = end.Revision-1, end, known, known[len(known)-1].Err
	p.Objects = slices.DeleteFunc(slices.Clone(p.Objects), func(o Object) bool { return o.Start.Compare(end) >= 0 })
	return p
}

// Find finds how to get to a target. A time behind the newest chain's end means its end, if nothing is known to have come later, and
// so does one behind the last chain of a generation, up to the beginning of the next generation. The latest revision is the newest
// generation's; as long as that has nothing, it is what was restored into it. ErrNotKept says that the target isn't kept, and what is.
func (r *Reader) Find(ctx context.Context, target Target) (Path, error) {
	return r.find(ctx, target, nil)
}

// find overlooks what is known to be of no use, and what turns out to be.
func (r *Reader) find(ctx context.Context, target Target, known faults) (Path, error) {
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
		more, another := known.with(fault)
		if !another {
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
			if chain.has(sought, h.stood(g, c)) {
				return h.path(ctx, generation, chain, sought)
			}
		}
	}
	return Path{}, h.notKept(target)
}

// resolve says which state the latest is: of the newest generation, or what was restored into it as long as that has nothing.
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

// stood is until when a chain's last revision was the present, as far as is known: the last one of a generation was until the next
// generation began.
func (h *History) stood(g, c int) time.Time {
	switch chains := h.Generations[g].Chains; {
	case c < len(chains)-1:
		return chains[c].End
	case g < len(h.Generations)-1:
		return Later(chains[c].End, h.Generations[g+1].Created.Add(-1))
	default:
		return farAway
	}
}

// has tells whether a target lies in the chain, whose last revision was the present until a time.
func (c Chain) has(target Target, until time.Time) bool {
	switch {
	case target.Revision != 0:
		return c.From <= target.Revision && target.Revision <= c.To
	case !target.Time.IsZero():
		return !target.Time.Before(c.Begin) && !target.Time.After(until)
	default:
		return true
	}
}

// path plans how to get to a target that the chain has, as far as its names tell.
func (h *History) path(ctx context.Context, generation Generational, chain Chain, target Target) (Path, error) {
	path := Path{
		Generation: generation.Generation, Full: chain.Fulls[0].Full, Revision: chain.To, Time: chain.End,
		index: chain.index, bound: chain.bound, target: target,
	}
	if target.Revision != 0 {
		path.Revision, path.Time = target.Revision, time.Time{}
	}
	for _, full := range chain.Fulls {
		if full.Revision <= path.Revision && (target.Time.IsZero() || !full.Since().After(target.Time)) {
			path.Full = full.Full
		}
	}
	objects, pastEnd := chain.index.follow(path.Full.Next), generation.pastEnd(chain)
	switch {
	case target.Latest():
		path.PastEnd, path.Reported = pastEnd, generation.reported()
	case target.Revision == 0:
		if err := h.reaches(ctx, chain, objects, target, pastEnd); err != nil {
			return Path{}, err
		}
		known, err := h.at(ctx, objects, path.Full, target.Time)
		if err != nil {
			return Path{}, err
		}
		path.Revision, path.Time = min(known.Revision, chain.To), known.Time
		if known.Time.After(target.Time) { // by a clock that was ahead
			path.Time = target.Time
		}
	}
	for _, object := range objects {
		if object.Start.Revision > path.Revision+1 {
			continue
		}
		if err := h.sound(ctx, object, path.Full); err != nil {
			return Path{}, err
		}
		path.Objects = append(path.Objects, object)
	}
	return path, nil
}

// sound is a Fault if an object that is listed as far larger than the database says of itself that it is not: what nobody would read to
// its end would still have people make the volume larger, or have what is kept there deleted.
func (h *History) sound(ctx context.Context, object Object, full Full) error {
	if object.Size <= 1<<30+8*full.Database.Bytes {
		return nil
	}
	_, err := h.reader.lastManifest(ctx, object)
	return faulty(err, object.Name(), object.Start)
}

// notKept says what is kept in the place of a target, and why that isn't more.
func (h *History) notKept(target Target) error {
	err := fmt.Errorf("%s is %w in %s, which has %s", target, ErrNotKept, h.reader.store, h.windows())
	if newest := h.Newest(); newest != nil {
		last := Chain{}
		if len(newest.Chains) > 0 {
			last = newest.Chains[len(newest.Chains)-1]
		}
		if pastEnd := newest.pastEnd(last); pastEnd != nil {
			err = fmt.Errorf("%w; what follows cannot be read: %w", err, pastEnd)
		}
	}
	return err
}

// mostWindows is how many are told of in an error; backup list tells of all.
const mostWindows = 3

// windows lists what can be gone back to, the newest of it, for people.
func (h *History) windows() string {
	var all []string
	for _, generation := range h.Generations {
		for _, chain := range generation.Chains {
			all = append(all, fmt.Sprintf("revisions %d to %d (%s to %s)", chain.From, chain.To,
				chain.Begin.UTC().Format(time.RFC3339), chain.End.UTC().Format(time.RFC3339)))
		}
	}
	switch older := len(all) - mostWindows; {
	case len(all) == 0:
		return "nothing that can be restored"
	case older > 0:
		return fmt.Sprintf("%s, and %d older ranges", strings.Join(all[older:], ", "), older)
	default:
		return strings.Join(all, ", ")
	}
}

// Fault is an error about something on a path that is missing, damaged or not to be believed.
type Fault struct {
	Object string          // its name; empty if nothing is there
	From   format.Position // what is before it was read; zero for a full
	Err    error
}

// Error is for people.
func (f *Fault) Error() string { return f.Err.Error() }

// Unwrap returns what it is about.
func (f *Fault) Unwrap() error { return f.Err }

// faulty makes a Fault of an error if it is about what lies in the store, and not about getting there.
func faulty(err error, object string, from format.Position) error {
	if Unusable(err) {
		return &Fault{Object: object, From: from, Err: err}
	}
	return err
}

// faults are those by which no way leads.
type faults []*Fault

// with adds one; false if it is there already.
func (f faults) with(fault *Fault) (faults, bool) {
	known := slices.ContainsFunc(f, func(o *Fault) bool { return o.Object == fault.Object && o.From == fault.From })
	return append(slices.Clone(f), fault), !known
}

// of is why an object is of no use; nil if nothing is known against it.
func (f faults) of(object string) error {
	return f.first(func(o *Fault) bool { return o.Object == object })
}

// first is what is wrong with the first of them that fits; nil if none does.
func (f faults) first(fits func(*Fault) bool) error {
	if i := slices.IndexFunc(f, fits); i >= 0 {
		return f[i].Err
	}
	return nil
}

// between tells whether something between two positions cannot be read. Names of segments don't show it.
func (f faults) between(a, b format.Position) bool {
	return slices.ContainsFunc(f, func(o *Fault) bool { return o.From.Compare(a) > 0 && o.From.Compare(b) < 0 })
}

// Instead finds another way to where a path leads, after a Fault had kept it from being read: from an older full, or by other
// objects. It may end earlier than the one before, at the last revision that can be read, if that led to the latest revision, or to
// a full that was named; compare the two to say what is lost. ErrNotKept says that there is no other way. Whether it can be gone is
// not known before it is read. A cause that is no Fault is returned as it is.
func (r *Reader) Instead(ctx context.Context, path Path, cause error) (Path, error) {
	var fault *Fault
	if !errors.As(cause, &fault) {
		return Path{}, cause
	}
	known, another := path.faults.with(fault)
	if !another {
		return Path{}, cause
	}
	if path.named() {
		return r.insteadOfFull(ctx, path, known)
	}
	target := path.target
	target.Generation = path.Generation.Number
	if !target.Latest() {
		target.Revision = path.Revision
	}
	other, err := r.find(ctx, target, known)
	if target.Latest() && !fault.From.IsZero() && (errors.Is(err, ErrNotKept) || err == nil && other.Revision < fault.From.Revision-1) {
		return path.upTo(fault.From, known), nil
	}
	if other.Revision == path.Revision {
		other.Time = path.Time
	}
	return other, err
}

// insteadOfFull finds another way to a full's revision, or to the last one before it.
func (r *Reader) insteadOfFull(ctx context.Context, path Path, known faults) (Path, error) {
	exact := Target{Generation: path.Generation.Number, Revision: path.Revision}
	other, err := r.find(ctx, exact, known)
	if !errors.Is(err, ErrNotKept) {
		return other, err
	}
	latest, none := r.find(ctx, Target{Generation: path.Generation.Number}, known)
	if none != nil || latest.Revision > path.Revision {
		return Path{}, err
	}
	return latest, nil
}

// reaches is an error if something that cannot be read may have come by a target's time.
func (h *History) reaches(ctx context.Context, chain Chain, objects []Object, target Target, pastEnd error) error {
	if pastEnd == nil {
		return nil
	}
	ended, err := h.ended(ctx, chain, objects)
	if err == nil && target.Time.After(ended) {
		err = fmt.Errorf("%s is %w: revision %d was the present at %s, and what came then cannot be read: %w", target, ErrNotKept,
			chain.To, ended.UTC().Format(time.RFC3339), pastEnd)
	}
	return err
}

// ended is when a chain's last revision was the present for certain. Chain.End may be later: it is when a merged object was made.
func (h *History) ended(ctx context.Context, chain Chain, objects []Object) (at time.Time, err error) {
	for _, full := range chain.Fulls {
		at = Later(at, full.Time)
	}
	for _, object := range slices.Backward(objects) {
		marked := time.Time{}
		for manifest, err := range h.reader.manifests(ctx, object) {
			if err != nil {
				return at, faulty(err, object.Name(), object.Start)
			}
			marked = Later(marked, manifest.To)
		}
		if !marked.IsZero() {
			return Later(at, marked), nil
		}
	}
	return at, nil
}

// at finds the last marker up to a time, in objects behind a full of that time or before. The full itself is one, a
// second later than it says.
func (h *History) at(ctx context.Context, objects []Object, full Full, t time.Time) (known format.Marker, err error) {
	known = format.Marker{Revision: full.Revision, Time: full.Since()}
	i := sort.Search(len(objects), func(i int) bool {
		if err != nil {
			return true
		}
		var from time.Time
		from, err = h.from(ctx, objects[i:], full.Cluster)
		return from.IsZero() || from.After(t)
	})
	if err != nil {
		return known, err
	}
	by := t
	if there, err := h.there(ctx, objects, i, t); err != nil {
		return known, err
	} else if there > i {
		i, by = there, farAway // all of them, whatever their markers say
	}
	if i == 0 {
		return known, nil
	}
	last := objects[i-1]
	if fault, err := h.missing(ctx, objects[i-1:], full.Cluster); err != nil {
		return known, faulty(err, last.Name(), last.Start)
	} else if fault != nil { // it may have been there at the time
		return known, fault
	}
	found, ok, err := h.segmentAt(ctx, last, by)
	if err != nil || !ok {
		return known, faulty(err, last.Name(), last.Start)
	}
	marker, err := h.markerAt(ctx, last, found, by)
	err = faulty(err, last.Name(), last.Start)
	if marker.Revision > known.Revision {
		known = marker
	}
	return known, err
}

// farAway is later than any marker.
var farAway = time.Unix(1<<40, 0)

// apart is how far clocks may lie apart before that is worth a thought.
const apart = time.Minute

// there is how many of the objects the store had at a time by its own clock, if that is more than i, which their markers tell:
// then these are of a member whose clock was ahead. A store's clock may be wrong as well, so it is believed only where others went on
// from that member's times, which never go back: theirs stand still, far ahead of the store's.
func (h *History) there(ctx context.Context, objects []Object, i int, t time.Time) (int, error) {
	there := i
	for j := i; j < len(objects); j++ {
		if !objects[j].Modified.After(t) {
			there = j + 1
		}
	}
	if there == i {
		return i, nil
	}
	var before time.Time
	for _, object := range objects[i:] {
		manifest, err := h.reader.firstManifest(ctx, object)
		if err != nil {
			return i, faulty(err, object.Name(), object.Start)
		}
		if !before.IsZero() && manifest.From.Equal(before) && manifest.From.Sub(object.Modified) > apart {
			return there, nil
		}
		before = manifest.From
	}
	return i, nil
}

// from is when the first of a cluster's objects begins that tells it; zero if none does. What another one has left among them tells the
// times of that one's revisions.
func (h *History) from(ctx context.Context, objects []Object, cluster string) (time.Time, error) {
	for _, object := range objects {
		manifest, err := h.reader.firstManifest(ctx, object)
		if err != nil || !manifest.From.IsZero() && manifest.Cluster == cluster {
			return manifest.From, faulty(err, object.Name(), object.Start)
		}
	}
	return time.Time{}, nil
}

// segmentAt finds the last segment of an object that begins at a time or before.
func (h *History) segmentAt(ctx context.Context, object Object, t time.Time) (last located, found bool, err error) {
	for next, err := range h.reader.manifests(ctx, object) {
		if err != nil {
			return located{}, false, err
		}
		if next.From.After(t) {
			break
		}
		if !next.From.IsZero() {
			last, found = next, true
		}
	}
	return last, found, nil
}

// markerAt reads the last marker of a segment that is not after a time.
func (h *History) markerAt(ctx context.Context, object Object, in located, t time.Time) (last format.Marker, err error) {
	for record, err := range h.reader.records(ctx, object, in) {
		if err != nil {
			return last, err
		}
		if marker, is := record.(*format.Marker); is && !marker.Time.After(t) {
			last = *marker
		}
	}
	return last, nil
}
