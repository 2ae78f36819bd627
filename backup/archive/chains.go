package archive

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"etcd-wrapper/backup/format"
)

// A Chain is a range of revisions that can all be restored: full snapshots and segments without a hole.
type Chain struct {
	Fulls   []StoredFull // usable ones, oldest first; at least one
	Objects []Object     // to read after the first full snapshot; the largest ones that cover the range
	From    int64        // revision of the first full snapshot
	To      int64        // last revision
	Begin   time.Time    // earliest restorable time: when From had become current, rounded up to the second
	End     time.Time    // latest time at which To is known to have been current
	PastEnd error        // why what follows cannot be restored; nil if nothing does, or if another chain starts there

	end   format.Position // position after its last object
	opens format.Position // where the next chain starts, as its last segment says; zero if it names none

	certain time.Time // when To was certainly current; End is later if the last object has no marker
}

// split splits the full snapshots and objects of a generation into chains.
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

// chain returns the chain that starts with the first full snapshot, and how many of them it includes. A Fault reports a
// merged object that must not be used.
func (x index) chain(ctx context.Context, fulls []StoredFull) (chain Chain, covered int, err error) {
	first := fulls[0]
	chain = Chain{From: first.Revision, To: first.Revision, Begin: first.ValidFrom(), End: first.ValidFrom(), end: first.Next}
	walk, another := x.walk(first.Start(), true), false
	for next, failed := range walk.steps(ctx) {
		if err = failed; err != nil {
			break
		}
		if another, err = x.startsChain(ctx, next, chain.end, fulls); another || err != nil {
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
			another = another || order == 0
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
	if chain.To = max(chain.To, chain.end.Revision-1); !another {
		chain.PastEnd = walk.Err
	}
	return chain, covered, nil
}

// startsChain reports whether an object at the end of a chain is the first one after a full snapshot that starts another
// chain. One that starts before that end overlaps the chain and continues it.
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

// IsCrossed reports whether the sequence in a merged object continues across a full snapshot: no segment there continues
// from it. StoredFull.Passed reports the same of segments that are not merged.
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

// findMissing returns an ErrHole if the generation continues after the end of a chain, up to a position. Objects that
// cannot be verified are only names, and are ignored.
func (x index) findMissing(ctx context.Context, chain Chain, bound format.Position) (hole, ignored, err error) {
	for _, object := range x.objects {
		if object.Start.Compare(chain.end) <= 0 || !bound.IsZero() && object.Start.Compare(bound) >= 0 {
			continue
		}
		_, err := x.reader.lastSegment(ctx, object, chain.Fulls[0].Cluster)
		switch {
		case err == nil:
			return fmt.Errorf("%w: nothing starts at %s in %s, and %s follows", ErrHole, chain.end, x.reader.store, object.Name()), ignored, nil
		case !Unusable(err):
			return nil, nil, err
		}
		ignored = selectError(ignored, err)
	}
	return nil, ignored, nil
}
