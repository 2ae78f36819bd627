package archive

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"etcd-wrapper/backup/store"
)

// A History lists what can be restored from a store.
type History struct {
	Cluster     *Cluster // nil if there is none that can be verified
	Generations []Generational

	reader *Reader
}

// A Generational lists what is stored of a generation.
type Generational struct {
	Generation
	Fulls   []KeptFull // oldest first
	Objects []Object   // of all levels, by their first positions
	Chains  []Chain    // oldest first
	Orphans []Orphan   // data without a manifest, of full snapshots that are being made or were never finished
	Ignored error      // an object that cannot be verified and that nothing leads to; nil if there is none
}

// An Orphan is an object that belongs to no full snapshot.
type Orphan struct {
	Name   string
	Stored time.Time // time of creation, by the store's clock
	Size   int64     // bytes
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
func (r *Reader) History(ctx context.Context) (*History, error) { return r.historyWithout(ctx, nil) }

// historyWithout lists what can be restored without objects that are known to be unusable.
func (r *Reader) historyWithout(ctx context.Context, known faults) (*History, error) {
	return retryListing(func() (*History, error) {
		history := &History{reader: r}
		return history, history.list(ctx, known)
	})
}

func (h *History) list(ctx context.Context, known faults) error {
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
		kept, err := h.readGeneration(ctx, generation, known)
		if err != nil {
			return err
		}
		h.Generations = append(h.Generations, kept)
	}
	return nil
}

func (h *History) readGeneration(ctx context.Context, generation Generation, known faults) (kept Generational, err error) {
	kept.Generation = generation
	if kept.Fulls, kept.Orphans, err = h.reader.listFulls(ctx, generation.Number); err != nil {
		return kept, err
	}
	results, err := h.resultNames(ctx, generation.Number)
	if err != nil {
		return kept, err
	}
	if err = forEach(len(kept.Fulls), func(i int) error { return h.readFull(ctx, generation, &kept.Fulls[i], results, known) }); err != nil {
		return kept, err
	}
	if kept.Objects, err = h.reader.list(ctx, generation.Number); err != nil {
		return kept, err
	}
	x, err := h.reader.verifiedIndex(ctx, kept.Objects, generation.Cluster, known)
	if err != nil {
		return kept, err
	}
	if kept.Chains, err = h.reader.chains(ctx, kept.Fulls, x); err != nil {
		return kept, err
	}
	return kept, kept.findPastEnds(ctx, h.reader, x)
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
func (h *History) readFull(ctx context.Context, generation Generation, kept *KeptFull, results map[string][]string, known faults) error {
	kept.fault = known.about(DataName(generation.Number, kept.Name()))
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
		if err == nil && result.Cluster == kept.Cluster {
			kept.Result = &result
			return nil
		}
		if err != nil && !NotVerified(err) {
			return err
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

// pastEnd returns why what follows the last chain cannot be restored; nil if nothing does.
func (g Generational) pastEnd() (why error) {
	if len(g.Chains) > 0 {
		return g.Chains[len(g.Chains)-1].PastEnd
	}
	for _, full := range slices.Backward(g.Fulls) {
		why = untrustedFirst(why, full.problem())
	}
	return why
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
