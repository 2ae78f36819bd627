package archive

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store"
)

// History is what is kept.
type History struct {
	Cluster     *Cluster // nil if nothing was ever kept here, or the cluster manifest is not to be believed
	Generations []Generational

	reader *Reader
	known  faults // what was found to be of no use, and is no part of the chains
}

// Generational is what is kept of a generation.
type Generational struct {
	Generation
	Fulls   []KeptFull // oldest first
	Objects []Object   // that hold segments, of all levels, by their first position
	Chains  []Chain    // oldest first
	Orphans []Orphan   // below full/, without a manifest: of a full that is being made, or never became one

	index *index
}

// Orphan is an object that belongs to no full.
type Orphan struct {
	Name   string
	Stored time.Time // when it was created, by the store's clock
	Size   int64     // bytes
}

// KeptFull is a full of a listing. Of one whose manifest is not believed only what its name says is known: Generation, Revision and Time.
type KeptFull struct {
	Full
	Size      int64     // of its objects, bytes
	Stored    time.Time // when its manifest was created, by the store's clock
	Result    *Result   // the newest; nil if there is none
	ResultErr error     // why that one is not believed
	Err       error     // why its manifest is not believed
	Passed    bool      // the chain before goes on across it, and nothing leads on from it

	fault error // why its data were found to be of no use
}

// Usable tells whether a restore may begin with it: its manifest is believed, and no test restore of it failed.
func (f KeptFull) Usable() bool { return f.useless() == nil }

// useless is why no restore begins with the full; nil if one may.
func (f KeptFull) useless() error {
	switch {
	case f.Err != nil:
		return f.Err
	case f.fault != nil:
		return f.fault
	case f.Result != nil && f.Result.Outcome == Failed:
		return fmt.Errorf("full %s failed its test restore: %s", f.Name(), f.Result.Why)
	}
	return nil
}

// Newest returns the generation that was begun last; nil if there is none.
func (h *History) Newest() *Generational {
	if len(h.Generations) == 0 {
		return nil
	}
	return &h.Generations[len(h.Generations)-1]
}

// Generation returns the one of a number; nil if there is none.
func (h *History) Generation(number int) *Generational {
	if i := slices.IndexFunc(h.Generations, func(g Generational) bool { return g.Number == number }); i >= 0 {
		return &h.Generations[i]
	}
	return nil
}

// History is what is kept. It reads the manifests and results of fulls, and those of segments that are not merged yet, since their
// names don't say where they end: that costs a request for each that this Reader has not read before.
func (r *Reader) History(ctx context.Context) (*History, error) {
	var known faults
	for {
		var found faults
		history, err := listed(func() (*History, error) {
			history := &History{reader: r, known: known}
			err := history.list(ctx)
			if err == nil {
				found, err = history.holes(ctx)
			}
			return history, err
		})
		if err != nil {
			return nil, err
		}
		if len(found) == 0 {
			history.tellEnds()
			return history, nil
		}
		known = append(known, found...)
	}
}

// tellEnds has the segments of a history tell where they end, as far as they were read.
func (h *History) tellEnds() {
	for g := range h.Generations {
		objects := h.Generations[g].Objects
		for i, object := range objects {
			if object.Level == Segment {
				known, _ := h.reader.seen.Get(object.listed())
				objects[i].Next = known.end
			}
		}
	}
}

// historyWithout is what names tell is kept, but for what is known to be of no use. It reads no segments' manifests, save the first
// and the last of each chain.
func (r *Reader) historyWithout(ctx context.Context, known faults) (*History, error) {
	return listed(func() (*History, error) {
		history := &History{reader: r, known: known}
		return history, history.list(ctx)
	})
}

func (h *History) list(ctx context.Context) error {
	cluster, err := h.reader.Cluster(ctx)
	switch {
	case err == nil:
		h.Cluster = &cluster
	case !errors.Is(err, store.ErrNotFound) && !NotVerified(err): // what is kept can be read without it
		return err
	}
	generations, err := h.reader.Generations(ctx)
	if err != nil {
		return err
	}
	for _, generation := range generations {
		kept, err := h.generational(ctx, generation)
		if err != nil {
			return err
		}
		h.Generations = append(h.Generations, kept)
	}
	return nil
}

func (h *History) generational(ctx context.Context, generation Generation) (kept Generational, err error) {
	kept.Generation = generation
	if kept.Fulls, kept.Orphans, err = h.reader.listFulls(ctx, generation.Number); err != nil {
		return kept, err
	}
	results, err := h.resultNames(ctx, generation.Number)
	if err != nil {
		return kept, err
	}
	if err = each(len(kept.Fulls), func(i int) error { return h.readFull(ctx, generation, &kept.Fulls[i], results) }); err != nil {
		return kept, err
	}
	if kept.index, err = h.reader.indexed(ctx, generation.Number); err != nil {
		return kept, err
	}
	kept.Objects = kept.index.all()
	kept.index = kept.index.without(func(o Object) bool { return h.known.of(o.Name()) != nil })
	kept.index.faults = h.known
	kept.Chains, err = h.chains(ctx, kept.Fulls, kept.index)
	kept.lookBehind()
	return kept, err
}

// readers is how many manifests are read at once.
const readers = 8

// listFulls returns what the listing tells of fulls.
func (r *Reader) listFulls(ctx context.Context, generation int) (fulls []KeptFull, orphans []Orphan, err error) {
	prefix := fullPrefix(generation)
	var waiting []Orphan // of the full that is being listed: its manifest comes last
	of := ""
	for object, err := range r.store.List(ctx, prefix, "") {
		if err != nil {
			return nil, nil, err
		}
		label, part, _ := strings.Cut(strings.TrimPrefix(object.Name, prefix), "/")
		if label != of {
			orphans, waiting, of = append(orphans, waiting...), nil, label
		}
		revision, at, err := ParseFullName(label)
		if err != nil || part != "manifest.json" {
			waiting = append(waiting, Orphan{Name: object.Name, Stored: object.Modified, Size: object.Size})
			continue
		}
		full := KeptFull{Full: Full{Generation: generation, Revision: revision, Time: at}, Stored: object.Modified, Size: object.Size}
		for _, other := range waiting {
			full.Size += other.Size
		}
		fulls, waiting = append(fulls, full), nil
	}
	return fulls, append(orphans, waiting...), nil
}

// resultNames lists the newest result of each full, by the full's name.
func (h *History) resultNames(ctx context.Context, generation int) (map[string]string, error) {
	names := map[string]string{}
	prefix := resultPrefix(generation)
	for object, err := range h.reader.store.List(ctx, prefix, "") {
		if err != nil {
			return nil, err
		}
		full, _, _ := strings.Cut(strings.TrimPrefix(object.Name, prefix), "_")
		names[full] = object.Name
	}
	return names, nil
}

// readFull reads what a full's objects state. What cannot be believed is noted; an error says that it could not be read.
func (h *History) readFull(ctx context.Context, generation Generation, kept *KeptFull, results map[string]string) error {
	result := results[kept.Name()]
	kept.fault = h.known.of(DataName(generation.Number, kept.Name()))
	full, err := h.reader.Full(ctx, generation.Number, kept.Name())
	if err == nil && full.Cluster != generation.Cluster {
		err = h.reader.anothers(ManifestName(generation.Number, kept.Name()), full.Cluster, generation.Cluster)
	}
	if NotVerified(err) {
		kept.Err = err
		return nil
	}
	if err != nil {
		return err
	}
	if kept.Full = full; result == "" {
		return nil
	}
	read, err := h.reader.result(ctx, result)
	if err == nil {
		kept.Result = &read
	} else if NotVerified(err) { // anybody may have put it there
		kept.ResultErr, err = err, nil
	}
	return err
}

// each does something for 0 to n-1, several at once, and returns the first of the errors.
func each(n int, do func(int) error) error {
	var group errgroup.Group
	group.SetLimit(readers)
	for i := range n {
		group.Go(func() error { return do(i) })
	}
	return group.Wait()
}

// reported is the last revision of the generation that names tell of.
func (g Generational) reported() (last int64) {
	for _, full := range g.Fulls {
		last = max(last, full.Revision)
	}
	for _, object := range g.Objects {
		end := object.Next
		if object.Level == Segment { // whose name doesn't tell it
			end = object.Start
		}
		last = max(last, end.Revision-1)
	}
	return last
}

// lookBehind notes what lies behind the chains and is no part of them. Behind the last one it is all that cannot be read.
func (g Generational) lookBehind() {
	for i := range g.Chains {
		chain := &g.Chains[i]
		chain.PastEnd = cmp.Or(chain.Unverified, chain.index.faults.first(func(f *Fault) bool { return f.From == chain.end }), chain.hole(chain.index.all()))
		if i == len(g.Chains)-1 {
			chain.PastEnd = g.pastEnd(*chain)
		}
	}
}

// pastEnd is why what lies behind a chain cannot be read, or does not belong to it; nil if nothing lies there. What nobody trusts
// is told first: it need not be damaged.
func (g Generational) pastEnd(chain Chain) error {
	why := []error{chain.Unverified}
	for _, full := range slices.Backward(g.Fulls) {
		if full.Revision > chain.To {
			why = append(why, full.useless())
		}
	}
	for _, fault := range g.index.faults {
		if fault.From.Compare(chain.end) >= 0 && !fault.From.IsZero() {
			why = append(why, fault.Err)
		}
	}
	why = append(why, chain.hole(g.Objects))
	why = slices.DeleteFunc(why, func(err error) bool { return err == nil })
	if i := slices.IndexFunc(why, func(err error) bool { return errors.Is(err, format.ErrUntrusted) }); i >= 0 {
		return why[i]
	}
	if len(why) == 0 {
		return nil
	}
	return why[0]
}

// holes are those within the chains.
func (h *History) holes(ctx context.Context) (all faults, err error) {
	for _, generation := range h.Generations {
		for _, chain := range generation.Chains {
			found := make(faults, len(chain.Objects))
			err := each(len(found), func(i int) (err error) {
				found[i], err = h.missing(ctx, chain.Objects[i:], generation.Cluster)
				return err
			})
			if err != nil {
				return nil, err
			}
			all = append(all, slices.DeleteFunc(found, func(f *Fault) bool { return f == nil })...)
		}
	}
	return all, nil
}

// missing is why the second of some objects does not follow the first one, which the name of a segment does not show; nil if it does.
func (h *History) missing(ctx context.Context, objects []Object, cluster string) (*Fault, error) {
	if len(objects) < 2 || objects[0].Level != Segment {
		return nil, nil
	}
	known, is := h.reader.seen.Get(objects[0].listed())
	var err error
	if !is { // the last one of a chain is read anew each time
		if known.end, _, err = h.reader.end(ctx, objects[0], cluster); err == nil {
			h.reader.seen.Add(objects[0].listed(), known)
		}
	}
	switch {
	case errors.Is(err, ErrForeign): // it stands between those of the chain
		return &Fault{Object: objects[0].Name(), Err: err}, nil
	case NotVerified(err):
		return &Fault{Object: objects[0].Name(), From: objects[0].Start, Err: err}, nil
	case err != nil || objects[1].Start.Compare(known.end) <= 0:
		return nil, err
	}
	return &Fault{From: known.end, Err: fmt.Errorf("%w: nothing in %s begins at %s, and %s follows", ErrHole, h.reader.store, known.end, objects[1].Name())}, nil
}

// seen is what a listing does not tell of an object. That never changes, and what is put in the place of one has another size or time.
type seen struct {
	end format.Position // of a segment
	why error           // why a merged object is not what its name says; nil if it is
}

// mostSeen is of how many objects it is remembered. Of more it is read each time.
const mostSeen = 1 << 15

// listed is all that a listing tells of an object.
func (o Object) listed() string {
	return fmt.Sprintf("%s %d %d", o.Name(), o.Size, o.Modified.UnixNano())
}
