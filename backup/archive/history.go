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
	"etcd-wrapper/backup/store"
)

// A History lists the restore points in a store.
type History struct {
	Cluster     *Cluster // nil if the cluster manifest cannot be verified
	Generations []GenerationContents

	reader *Reader
}

// A GenerationContents lists the stored objects of a generation.
type GenerationContents struct {
	Generation
	Fulls   []StoredFull   // oldest first
	Objects []Object       // objects of all levels, ordered by first position
	Chains  []Chain        // oldest first
	Orphans []store.Object // data without a manifest, from incomplete full snapshots
	Ignored error          // why an unverifiable object after the last chain was ignored; nil if there is none
}

// Newest returns the newest generation, or nil if there is none.
func (h *History) Newest() *GenerationContents {
	if len(h.Generations) == 0 {
		return nil
	}
	return &h.Generations[len(h.Generations)-1]
}

// Generation returns the generation with the given number, or nil if there is none.
func (h *History) Generation(number int) *GenerationContents {
	if i := slices.IndexFunc(h.Generations, func(g GenerationContents) bool { return g.Number == number }); i >= 0 {
		return &h.Generations[i]
	}
	return nil
}

// History lists all restore points. History reads the manifests and test results of full snapshots. The manifests of
// unmerged segments are read too, because the names of segments do not contain their ends. Each manifest that this
// Reader has not read before takes one request.
func (r *Reader) History(ctx context.Context) (*History, error) { return r.historyWithout(ctx, nil) }

// historyWithout is like History, but ignores the objects in known.
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
	case !errors.Is(err, store.ErrNotFound) && !NotVerified(err): // backups are readable without cluster.json
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
		case !errors.As(err, &fault) || !NotVerified(err):
			// If an object is missing, retryList lists again, because the object may have been merged.
			return kept, err
		}
		known = append(slices.Clone(known), fault)
	}
}

// resultNames returns the names of the test results for each full snapshot, oldest first.
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

// readFull reads the manifest and the test result of a full snapshot. Verification errors are stored in kept;
// readFull only returns an error if an object cannot be read.
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

// readResult reads the newest verifiable test result for a full snapshot. Newer results that cannot be verified are
// ignored.
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

// pastEnd returns why the objects after the last chain cannot be restored, or nil if there are none.
func (g GenerationContents) pastEnd() (why error) {
	if len(g.Chains) > 0 {
		return g.Chains[len(g.Chains)-1].PastEnd
	}
	for _, full := range slices.Backward(g.Fulls) {
		why = selectError(why, full.rejectReason())
	}
	return why
}

// checkAfterEnd sets Ignored and the PastEnd of each chain.
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

// findNewerFull returns why a full snapshot after the last chain cannot be used, or hole if there is no such
// snapshot. If only a snapshot that cannot be verified follows the chain, the error is stored in Ignored, because
// anyone with write access to the store can create its name.
func (g *GenerationContents) findNewerFull(chain Chain, hole error) error {
	if !chain.opens.IsZero() {
		hole = cmp.Or(hole, fmt.Errorf("%w: the full snapshot for position %s is missing", ErrHole, chain.opens))
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

// A Chain is a range of revisions that can all be restored from full snapshots and contiguous segments.
type Chain struct {
	Fulls   []StoredFull // usable full snapshots, oldest first; at least one
	Objects []Object     // objects to read after the first full snapshot; the largest ones that cover the range
	From    int64        // revision of the first full snapshot
	To      int64        // last revision
	Begin   time.Time    // earliest time that can be restored: when From was current, rounded up to a second
	End     time.Time    // latest time at which To is known to have been current
	PastEnd error        // why later backups cannot be restored; nil if there are none or another chain starts there

	end   format.Position // position after the last object
	opens format.Position // start of the next chain, as recorded in the last segment; zero if there is none

	certain time.Time // time at which To was certainly current; End is later if the last object has no marker
}

// split divides the full snapshots and objects of a generation into chains.
func (x index) split(ctx context.Context, fulls []StoredFull) (chains []Chain, err error) {
	for i := 0; i < len(fulls); {
		if !fulls[i].Usable() {
			i++
			continue
		}
		chain, covered, err := x.chain(ctx, fulls[i:])
		if err != nil {
			return nil, err
		}
		chains = append(chains, chain)
		i += covered
	}
	return chains, nil
}

// chain returns the chain that starts with the first full snapshot, and the number of full snapshots in the chain. A
// Fault reports a merged object that must not be used.
func (x index) chain(ctx context.Context, fulls []StoredFull) (chain Chain, covered int, err error) {
	first := fulls[0]
	chain = Chain{From: first.Revision, To: first.Revision, Begin: first.ValidFrom(), End: first.ValidFrom(), end: first.Next}
	walk, restarts := x.walk(first.Start(), true), false // restarts: another chain starts at the end
	for next, failed := range walk.steps(ctx) {
		if err = failed; err != nil {
			break
		}
		if restarts, err = x.startsChain(ctx, next, chain.end, fulls); restarts || err != nil {
			break
		}
		chain.Objects, chain.end = append(chain.Objects, next.Object), next.Next
		if next.last != nil {
			chain.certain = MaxTime(chain.certain, next.last.To)
		}
	}
	if err != nil {
		return chain, 0, err
	}
	if count := len(chain.Objects); count > 0 {
		last := chain.Objects[count-1]
		manifest, err := x.reader.lastSegment(ctx, last, first.Cluster)
		if err != nil {
			return chain, 0, asFault(err, last.Name(), last.Start)
		}
		chain.opens, chain.certain = manifest.Opens, MaxTime(chain.certain, manifest.To)
		chain.End = MaxTime(chain.Begin, cmp.Or(manifest.To, last.Modified))
	}
	for i := range fulls {
		full := &fulls[i]
		starts := full.Next != first.Next && full.StartsChain()
		if order := full.Next.Compare(chain.end); full.Err == nil && (order > 0 || order == 0 && starts) {
			restarts = restarts || order == 0
			break
		}
		covered++
		full.Passed = starts || slices.ContainsFunc(chain.Objects, func(o Object) bool {
			return o.Level == Segment && o.Start != full.Next && o.contains(full.Next)
		})
		if full.Usable() && !full.Passed {
			chain.Fulls = append(chain.Fulls, *full)
			chain.To, chain.End, chain.certain = max(chain.To, full.Revision), MaxTime(chain.End, full.Time), MaxTime(chain.certain, full.Time)
		}
	}
	if chain.To = max(chain.To, chain.end.Revision-1); !restarts {
		chain.PastEnd = walk.Err
	}
	return chain, covered, nil
}

// startsChain reports whether an object at the end of a chain is the first object after a full snapshot that starts
// another chain. An object that starts before the end of the chain overlaps the chain, so it continues the chain.
func (x index) startsChain(ctx context.Context, object step, end format.Position, fulls []StoredFull) (bool, error) {
	i := slices.IndexFunc(fulls, func(f StoredFull) bool {
		return f.Err == nil && f.Next == object.Start && f.Next == end && f.Next != fulls[0].Next && f.StartsChain()
	})
	if i < 0 {
		return false, nil
	}
	manifest, err := x.reader.firstManifest(ctx, object.Object)
	return err == nil && manifest.Before == fulls[i].Chain, asFault(err, object.Name(), object.Start)
}

// IsCrossed reports whether a merged object continues past a full snapshot, which means that no segment continues
// from the snapshot. For unmerged segments, see StoredFull.Passed.
func (r *objectStore) IsCrossed(ctx context.Context, full Full) (crossed bool, err error) {
	objects, err := r.Objects(ctx, full.Generation)
	for _, object := range objects {
		if !object.contains(full.Next) {
			continue
		}
		for manifest, err := range r.manifests(ctx, object) {
			if err == nil && manifest.Next().Compare(full.Next) <= 0 {
				continue
			}
			if err != nil && !Unusable(err) || err == nil && manifest.Position == full.Next && manifest.Before == full.Chain {
				return false, err
			}
			crossed = crossed || err == nil
			break
		}
	}
	return crossed, err
}

// findMissing returns ErrHole as hole if a verifiable object starts after the end of a chain and before bound (or
// anywhere after the end if bound is zero). Objects that cannot be verified do not count; ignored is the reason for
// one of them.
func (x index) findMissing(ctx context.Context, chain Chain, bound format.Position) (hole, ignored, err error) {
	for _, object := range x.objects {
		if object.Start.Compare(chain.end) <= 0 || !bound.IsZero() && object.Start.Compare(bound) >= 0 {
			continue
		}
		_, err := x.reader.lastSegment(ctx, object, chain.Fulls[0].Cluster)
		switch {
		case err == nil:
			return fmt.Errorf("%w: segment %s is missing from %s, but %s exists", ErrHole, chain.end, x.reader.store, object.Name()), ignored, nil
		case !Unusable(err):
			return nil, nil, err
		}
		ignored = selectError(ignored, err)
	}
	return nil, ignored, nil
}
