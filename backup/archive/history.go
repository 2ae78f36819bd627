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

// A History lists what can be restored from a store.
type History struct {
	Cluster     *Cluster // nil if there is none that can be verified
	Generations []Generational

	reader *Reader
	known  faults // unusable objects, which are not part of the chains
}

// A Generational lists what is stored of a generation.
type Generational struct {
	Generation
	Fulls   []KeptFull // oldest first
	Objects []Object   // of all levels, by their first positions
	Chains  []Chain    // oldest first
	Orphans []Orphan   // data without a manifest, of full snapshots that are being made or were never finished

	index *index
}

// An Orphan is an object that belongs to no full snapshot.
type Orphan struct {
	Name   string
	Stored time.Time // time of creation, by the store's clock
	Size   int64     // bytes
}

// A KeptFull is a full snapshot in a listing. If its manifest cannot be verified, only Generation, Revision and Time
// are set, from its name.
type KeptFull struct {
	Full
	Size      int64     // of its objects, in bytes
	Stored    time.Time // when its manifest was created, by the store's clock
	Result    *Result   // the newest; nil if there is none
	ResultErr error     // why the newest result cannot be verified
	Err       error     // why its manifest cannot be verified
	Passed    bool      // the chain before continues across it, and no segment starts at it

	fault error // why its data are unusable
}

// Usable reports whether a restore may start with it: its manifest is verified, and no test restore of it failed.
func (f KeptFull) Usable() bool { return f.problem() == nil }

// problem returns why no restore may start with the full snapshot; nil if one may.
func (f KeptFull) problem() error {
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

// Newest returns the newest generation; nil if there is none.
func (h *History) Newest() *Generational {
	if len(h.Generations) == 0 {
		return nil
	}
	return &h.Generations[len(h.Generations)-1]
}

// Generation returns the generation with a number; nil if there is none.
func (h *History) Generation(number int) *Generational {
	if i := slices.IndexFunc(h.Generations, func(g Generational) bool { return g.Number == number }); i >= 0 {
		return &h.Generations[i]
	}
	return nil
}

// History lists what can be restored. It reads the manifests and results of full snapshots, and the manifests of
// segments that are not merged, since their names do not say where they end: one request for each that this Reader
// has not read before.
func (r *Reader) History(ctx context.Context) (*History, error) {
	var known faults
	for {
		var found faults
		history, err := retryListing(func() (*History, error) {
			history := &History{reader: r, known: known}
			err := history.list(ctx)
			if err == nil {
				found, err = history.findHoles(ctx)
			}
			return history, err
		})
		if err != nil {
			return nil, err
		}
		if len(found) == 0 {
			history.setEnds()
			return history, nil
		}
		known = append(known, found...)
	}
}

// setEnds sets Next of the segments whose manifests were read.
func (h *History) setEnds() {
	for g := range h.Generations {
		objects := h.Generations[g].Objects
		for i, object := range objects {
			if object.Level == Segment {
				known, _ := h.reader.cache.Get(object.cacheKey())
				objects[i].Next = known.end
			}
		}
	}
}

// historyWithout lists what can be restored by names, without objects that are known to be unusable. It reads the
// manifests of the first and the last segment of each chain only.
func (r *Reader) historyWithout(ctx context.Context, known faults) (*History, error) {
	return retryListing(func() (*History, error) {
		history := &History{reader: r, known: known}
		return history, history.list(ctx)
	})
}

func (h *History) list(ctx context.Context) error {
	cluster, err := h.reader.Cluster(ctx)
	switch {
	case err == nil:
		h.Cluster = &cluster
	case !errors.Is(err, store.ErrNotFound) && !NotVerified(err): // backups can be read without it
		return err
	}
	generations, err := h.reader.Generations(ctx)
	if err != nil {
		return err
	}
	for _, generation := range generations {
		kept, err := h.readGeneration(ctx, generation)
		if err != nil {
			return err
		}
		h.Generations = append(h.Generations, kept)
	}
	return nil
}

func (h *History) readGeneration(ctx context.Context, generation Generation) (kept Generational, err error) {
	kept.Generation = generation
	if kept.Fulls, kept.Orphans, err = h.reader.listFulls(ctx, generation.Number); err != nil {
		return kept, err
	}
	results, err := h.resultNames(ctx, generation.Number)
	if err != nil {
		return kept, err
	}
	if err = forEach(len(kept.Fulls), func(i int) error { return h.readFull(ctx, generation, &kept.Fulls[i], results) }); err != nil {
		return kept, err
	}
	if kept.index, err = h.reader.indexed(ctx, generation.Number); err != nil {
		return kept, err
	}
	kept.Objects = kept.index.objects()
	kept.index = kept.index.remove(func(o Object) bool { return h.known.about(o.Name()) != nil })
	kept.index.faults = h.known
	kept.Chains, err = h.findChains(ctx, kept.Fulls, kept.index)
	kept.setPastEnd()
	return kept, err
}

// maxParallel limits the manifests that are read in parallel.
const maxParallel = 8

// listFulls lists full snapshots, without reading them.
func (r *Reader) listFulls(ctx context.Context, generation int) (fulls []KeptFull, orphans []Orphan, err error) {
	prefix := fullPrefix(generation)
	var waiting []Orphan // for the manifest of their full snapshot, which sorts after them
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

// resultNames lists the results of each full snapshot, oldest first, by the snapshot's name.
func (h *History) resultNames(ctx context.Context, generation int) (map[string][]string, error) {
	names := map[string][]string{}
	prefix := resultPrefix(generation)
	for object, err := range h.reader.store.List(ctx, prefix, "") {
		if err != nil {
			return nil, err
		}
		full, _, _ := strings.Cut(strings.TrimPrefix(object.Name, prefix), "_")
		names[full] = append(names[full], object.Name)
	}
	return names, nil
}

// readFull reads the manifest and the result of a full snapshot. What cannot be verified is recorded; an error
// reports that it could not be read.
func (h *History) readFull(ctx context.Context, generation Generation, kept *KeptFull, results map[string][]string) error {
	kept.fault = h.known.about(DataName(generation.Number, kept.Name()))
	full, err := h.reader.Full(ctx, generation.Number, kept.Name())
	if err == nil && full.Cluster != generation.Cluster {
		err = h.reader.foreignError(ManifestName(generation.Number, kept.Name()), full.Cluster, generation.Cluster)
	}
	if NotVerified(err) {
		kept.Err = err
		return nil
	}
	if err != nil {
		return err
	}
	kept.Full = full
	return h.readResult(ctx, kept, results[kept.Name()])
}

// readResult reads the newest result of a full snapshot that can be verified: anybody may have put an object with a higher name.
func (h *History) readResult(ctx context.Context, kept *KeptFull, names []string) error {
	for _, name := range slices.Backward(names) {
		result, err := h.reader.result(ctx, name)
		if err == nil && result.Cluster != kept.Cluster {
			err = h.reader.foreignError(name, result.Cluster, kept.Cluster)
		}
		switch {
		case err == nil:
			kept.Result = &result
			return nil
		case !NotVerified(err):
			return err
		case kept.ResultErr == nil:
			kept.ResultErr = err
		}
	}
	return nil
}

// forEach calls do for 0 to n-1, some of them in parallel, and returns the first error.
func forEach(n int, do func(int) error) error {
	var group errgroup.Group
	group.SetLimit(maxParallel)
	for i := range n {
		group.Go(func() error { return do(i) })
	}
	return group.Wait()
}

// lastReported returns the last revision of the generation that names suggest.
func (g Generational) lastReported() (last int64) {
	for _, full := range g.Fulls {
		last = max(last, full.Revision)
	}
	for _, object := range g.Objects {
		end := object.Next
		if object.Level == Segment { // its name does not say where it ends
			end = object.Start
		}
		last = max(last, end.Revision-1)
	}
	return last
}

// setPastEnd sets PastEnd of the chains. For the last one that is anything that cannot be read.
func (g Generational) setPastEnd() {
	for i := range g.Chains {
		chain := &g.Chains[i]
		chain.PastEnd = cmp.Or(chain.Unverified, chain.index.faults.firstError(func(f *Fault) bool { return f.From == chain.end }), chain.holeError(chain.index.objects()))
		if i == len(g.Chains)-1 {
			chain.PastEnd = g.pastEndError(*chain)
		}
	}
}

// pastEndError returns why objects after a chain cannot be read, or do not belong to it; nil if there are none.
// Missing trust comes first, as the object need not be damaged.
func (g Generational) pastEndError(chain Chain) error {
	why := []error{chain.Unverified}
	for _, full := range slices.Backward(g.Fulls) {
		if full.Revision > chain.To {
			why = append(why, full.problem())
		}
	}
	for _, fault := range g.index.faults {
		if fault.From.Compare(chain.end) >= 0 && !fault.From.IsZero() {
			why = append(why, fault.Err)
		}
	}
	why = append(why, chain.holeError(g.Objects))
	why = slices.DeleteFunc(why, func(err error) bool { return err == nil })
	if i := slices.IndexFunc(why, func(err error) bool { return errors.Is(err, format.ErrUntrusted) }); i >= 0 {
		return why[i]
	}
	if len(why) == 0 {
		return nil
	}
	return why[0]
}

// findHoles returns the holes within the chains.
func (h *History) findHoles(ctx context.Context) (all faults, err error) {
	for _, generation := range h.Generations {
		for _, chain := range generation.Chains {
			found := make(faults, len(chain.Objects))
			err := forEach(len(found), func(i int) (err error) {
				found[i], err = h.checkNext(ctx, chain.Objects[i:], generation.Cluster)
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

// checkNext returns why the second of some objects does not follow the first one, which the name of a segment does
// not show; nil if it does.
func (h *History) checkNext(ctx context.Context, objects []Object, cluster string) (*Fault, error) {
	if len(objects) < 2 || objects[0].Level != Segment {
		return nil, nil
	}
	known, is := h.reader.cache.Get(objects[0].cacheKey())
	var err error
	if !is { // the last one of a chain is not cached
		if known.end, _, err = h.reader.objectEnd(ctx, objects[0], cluster); err == nil {
			h.reader.cache.Add(objects[0].cacheKey(), known)
		}
	}
	switch {
	case errors.Is(err, ErrForeign): // it lies between those of the chain
		return &Fault{Object: objects[0].Name(), Err: err}, nil
	case NotVerified(err):
		return &Fault{Object: objects[0].Name(), From: objects[0].Start, Err: err}, nil
	case err != nil || objects[1].Start.Compare(known.end) <= 0:
		return nil, err
	}
	return &Fault{From: known.end, Err: fmt.Errorf("%w: nothing in %s starts at %s, and %s follows", ErrHole, h.reader.store, known.end, objects[1].Name())}, nil
}

// An objectInfo is what a listing does not say about an object. Objects never change, and a replaced one has another
// size or time.
type objectInfo struct {
	end format.Position // of a segment
	why error           // why a merged object does not match its name; nil if it does
}

// maxCached limits the objects for which that is cached.
const maxCached = 1 << 15

// cacheKey identifies an object by all that a listing says.
func (o Object) cacheKey() string {
	return fmt.Sprintf("%s %d %d", o.Name(), o.Size, o.Modified.UnixNano())
}
