package archive

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"etcd-wrapper/backup/format"
)

// A KeptFull is a full snapshot in a listing. If its manifest cannot be verified, only Generation, Revision and Time
// are set, from its name.
type KeptFull struct {
	Full
	Size   int64     // of its objects, in bytes
	Stored time.Time // when its manifest was created, by the store's clock
	Result *Result   // the newest that can be verified; nil if there is none
	Err    error     // why its manifest cannot be verified
	Passed bool      // the chain before continues across it, and no segment continues from it

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

// A Chain is a range of revisions that can all be restored: full snapshots and segments without a hole.
type Chain struct {
	Fulls   []KeptFull // usable ones, oldest first; at least one
	Objects []Object   // to read after the first full snapshot; the largest ones that cover the range
	From    int64      // revision of the first full snapshot
	To      int64      // last revision
	Begin   time.Time  // earliest restorable time: when From had become current, rounded up to the second
	End     time.Time  // latest time at which To is known to have been current
	PastEnd error      // why what follows cannot be restored; nil if nothing does, or if another chain starts there

	end   format.Position // position after its last object
	opens format.Position // where the next chain starts, as its last segment says; zero if it names none

	certain time.Time // when To was certainly current; End is later if the last object has no marker
}

// chains splits the full snapshots and objects of a generation into chains.
func (r *Reader) chains(ctx context.Context, fulls []KeptFull, x index) (chains []Chain, err error) {
	for i := 0; i < len(fulls); {
		if !fulls[i].Usable() {
			i++
			continue
		}
		chain, covered, err := r.chain(ctx, fulls[i:], x)
		if err != nil {
			return nil, err
		}
		chains = append(chains, chain)
		i += covered
	}
	return chains, nil
}

// chain returns the chain that starts with the first of fulls, and how many of them it includes.
func (r *Reader) chain(ctx context.Context, fulls []KeptFull, x index) (chain Chain, covered int, err error) {
	first := fulls[0]
	chain = Chain{From: first.Revision, To: first.Revision, Begin: first.Since(), End: first.Since(), end: first.Next}
	walk, another := r.walk(first.Start(), x, true), false
	for next, failed := range walk.steps(ctx) {
		if err = failed; err != nil {
			break
		}
		if another, err = r.startsChain(ctx, next, fulls); another || err != nil {
			break
		}
		chain.Objects, chain.end = append(chain.Objects, next.Object), next.Next
		if next.last != nil {
			chain.certain = Later(chain.certain, next.last.To)
		}
	}
	if err != nil {
		return chain, 0, err
	}
	if count := len(chain.Objects); count > 0 {
		last := chain.Objects[count-1]
		manifest, err := r.lastSegment(ctx, last, first.Cluster)
		if err != nil {
			return chain, 0, err
		}
		chain.opens, chain.certain = manifest.Opens, Later(chain.certain, manifest.To)
		chain.End = Later(chain.Begin, cmp.Or(manifest.To, last.Modified))
	}
	for i := range fulls {
		full := &fulls[i]
		starts := full.Next != first.Next && full.BeginsChain()
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
			chain.To, chain.End, chain.certain = max(chain.To, full.Revision), Later(chain.End, full.Time), Later(chain.certain, full.Time)
		}
	}
	if chain.To = max(chain.To, chain.end.Revision-1); !another {
		chain.PastEnd = walk.Err
	}
	return chain, covered, nil
}

// startsChain reports whether an object is the first one after a full snapshot that starts another chain.
func (r *Reader) startsChain(ctx context.Context, object step, fulls []KeptFull) (bool, error) {
	i := slices.IndexFunc(fulls, func(f KeptFull) bool {
		return f.Err == nil && f.Next == object.Start && f.Next != fulls[0].Next && f.BeginsChain()
	})
	if i < 0 {
		return false, nil
	}
	manifest, err := r.firstManifest(ctx, object.Object)
	return err == nil && manifest.Before == fulls[i].Chain, err
}

// findPastEnds completes PastEnd of the chains of a generation, and sets Ignored.
func (g *Generational) findPastEnds(ctx context.Context, r *Reader, x index) error {
	for i := range g.Chains {
		chain, bound := &g.Chains[i], format.Position{}
		if i < len(g.Chains)-1 && g.Chains[i+1].Fulls[0].BeginsChain() {
			bound = g.Chains[i+1].Fulls[0].Next
		}
		hole, ignored, err := r.findHole(ctx, x, *chain, bound)
		if err != nil {
			return err
		}
		if i == len(g.Chains)-1 {
			g.Ignored = ignored
			hole = g.findNewerFull(*chain, hole)
		}
		if chain.PastEnd = cmp.Or(chain.PastEnd, hole); chain.PastEnd != nil {
			chain.End = Later(chain.Begin, chain.certain)
		}
	}
	return nil
}

// findNewerFull returns why no restore may start with a full snapshot that follows the last chain, or the hole before
// it. One that cannot be verified counts only where something else shows that the generation continues: anyone who can
// write to the store can create its name.
func (g *Generational) findNewerFull(chain Chain, hole error) error {
	if !chain.opens.IsZero() {
		hole = cmp.Or(hole, fmt.Errorf("%w: the full snapshot is missing that continues at %s", ErrHole, chain.opens))
	}
	for _, full := range slices.Backward(g.Fulls) {
		problem := full.problem()
		switch {
		case problem == nil || full.Revision <= chain.To:
		case full.Err == nil || hole != nil:
			return problem
		default:
			g.Ignored = untrustedFirst(g.Ignored, problem)
		}
	}
	return hole
}

// untrustedFirst returns the first of two errors that is not nil, but prefers missing trust: the object need not be
// damaged.
func untrustedFirst(a, b error) error {
	if errors.Is(b, format.ErrUntrusted) && !errors.Is(a, format.ErrUntrusted) {
		return b
	}
	return cmp.Or(a, b)
}

// findHole returns an ErrHole if the generation continues after the end of a chain, up to a position. Objects that
// cannot be verified are only names, and are ignored.
func (r *Reader) findHole(ctx context.Context, x index, chain Chain, bound format.Position) (hole, ignored, err error) {
	for _, object := range x.objects {
		if object.Start.Compare(chain.end) <= 0 || !bound.IsZero() && object.Start.Compare(bound) >= 0 {
			continue
		}
		_, err := r.lastSegment(ctx, object, chain.Fulls[0].Cluster)
		switch {
		case err == nil:
			return fmt.Errorf("%w: nothing starts at %s in %s, and %s follows", ErrHole, chain.end, r.store, object.Name()), ignored, nil
		case !Unusable(err):
			return nil, nil, err
		}
		ignored = untrustedFirst(ignored, err)
	}
	return nil, ignored, nil
}

// Later returns the later of two times.
func Later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
