package archive

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store"
)

// A History lists what can be restored from a store.
type History struct {
	Cluster     *Cluster // nil if there is none that can be verified
	Generations []GenerationContents

	reader *Reader
}

// A GenerationContents lists what is stored of a generation.
type GenerationContents struct {
	Generation
	Fulls   []StoredFull   // oldest first
	Objects []Object       // of all levels, by their first positions
	Chains  []Chain        // oldest first
	Orphans []store.Object // data without a manifest, of full snapshots that are being made or were never finished
	Ignored error          // an object that cannot be verified and that nothing leads to; nil if there is none
}

// Newest returns the newest generation; nil if there is none.
func (h *History) Newest() *GenerationContents {
	if len(h.Generations) == 0 {
		return nil
	}
	return &h.Generations[len(h.Generations)-1]
}

// Generation returns the generation with a number; nil if there is none.
func (h *History) Generation(number int) *GenerationContents {
	if i := slices.IndexFunc(h.Generations, func(g GenerationContents) bool { return g.Number == number }); i >= 0 {
		return &h.Generations[i]
	}
	return nil
}

// History lists what can be restored. It reads the manifests and results of full snapshots, and the manifests of
// segments that are not merged, since their names do not have their ends: one request for each that this Reader
// has not read before.
func (r *Reader) History(ctx context.Context) (*History, error) { return r.historyWithout(ctx, nil) }

// historyWithout lists what can be restored without objects that are known to be unusable.
func (r *Reader) historyWithout(ctx context.Context, known faultList) (*History, error) {
	return retryList(func() (*History, error) {
		history := &History{reader: r}
		return history, history.list(ctx, known)
	})
}

func (h *History) list(ctx context.Context, known faultList) error {
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

func (h *History) readGeneration(ctx context.Context, generation Generation, known faultList) (kept GenerationContents, err error) {
	kept.Generation = generation
	if kept.Fulls, kept.Orphans, err = h.reader.listSnapshots(ctx, generation.Number); err != nil {
		return kept, err
	}
	results, err := h.resultNames(ctx, generation.Number)
	if err != nil {
		return kept, err
	}
	if err = forEach(len(kept.Fulls), func(i int) error { return h.readFull(ctx, generation, &kept.Fulls[i], results, known) }); err != nil {
		return kept, err
	}
	if kept.Objects, err = h.reader.Objects(ctx, generation.Number); err != nil {
		return kept, err
	}
	for {
		x, err := h.reader.verifiedIndex(ctx, kept.Objects, generation.Cluster, known)
		if err != nil {
			return kept, err
		}
		kept.Chains, err = x.split(ctx, kept.Fulls)
		var fault *Fault
		switch {
		case err == nil:
			return kept, kept.checkAfterEnd(ctx, x)
		case !errors.As(err, &fault) || !NotVerified(err): // a missing object may be merged: list again
			return kept, err
		}
		known = append(slices.Clone(known), fault)
	}
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
func (h *History) readFull(ctx context.Context, generation Generation, kept *StoredFull, results map[string][]string, known faultList) error {
	kept.fault = known.errorOf(DataName(generation.Number, kept.Name()))
	full, err := h.reader.Full(ctx, generation.Number, kept.Name())
	if err == nil && full.Cluster != generation.Cluster {
		err = h.reader.otherClusterError(ManifestName(generation.Number, kept.Name()), full.Cluster, generation.Cluster)
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

// readResult reads the newest result of a full snapshot that can be verified: an object with a higher name may be garbage.
func (h *History) readResult(ctx context.Context, kept *StoredFull, names []string) error {
	for _, name := range slices.Backward(names) {
		switch result, err := h.reader.result(ctx, name); {
		case err == nil && result.Cluster == kept.Cluster:
			kept.Result = &result
			return nil
		case err != nil && !NotVerified(err):
			return err
		}
	}
	return nil
}

// pastEnd returns why what follows the last chain cannot be restored; nil if nothing does.
func (g GenerationContents) pastEnd() (why error) {
	if len(g.Chains) > 0 {
		return g.Chains[len(g.Chains)-1].PastEnd
	}
	for _, full := range slices.Backward(g.Fulls) {
		why = selectError(why, full.rejectReason())
	}
	return why
}

// checkAfterEnd completes PastEnd of the chains of a generation, and sets Ignored.
func (g *GenerationContents) checkAfterEnd(ctx context.Context, x index) error {
	for i := range g.Chains {
		chain, bound := &g.Chains[i], format.Position{}
		if i < len(g.Chains)-1 && g.Chains[i+1].Fulls[0].StartsChain() {
			bound = g.Chains[i+1].Fulls[0].Next
		}
		hole, ignored, err := x.findMissing(ctx, *chain, bound)
		if err != nil {
			return err
		}
		if i == len(g.Chains)-1 {
			g.Ignored = ignored
			hole = g.findNewerFull(*chain, hole)
		}
		if chain.PastEnd = cmp.Or(chain.PastEnd, hole); chain.PastEnd != nil {
			chain.End = MaxTime(chain.Begin, chain.certain)
		}
	}
	return nil
}

// findNewerFull returns why no restore may start with a full snapshot that follows the last chain, or the hole before
// it. One that cannot be verified counts only where something else shows that the generation continues: anyone who can
// write to the store can create its name.
func (g *GenerationContents) findNewerFull(chain Chain, hole error) error {
	if !chain.opens.IsZero() {
		hole = cmp.Or(hole, fmt.Errorf("%w: the full snapshot is missing that continues at %s", ErrHole, chain.opens))
	}
	for _, full := range slices.Backward(g.Fulls) {
		problem := full.rejectReason()
		switch {
		case problem == nil || full.Revision <= chain.To:
		case full.Err == nil || hole != nil:
			return problem
		default:
			g.Ignored = selectError(g.Ignored, problem)
		}
	}
	return hole
}
