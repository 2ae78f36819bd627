package archive

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"etcd-wrapper/backup/format/segment"
)

// Chain is a range of revisions that can all be restored: fulls and segments without a hole.
type Chain struct {
	Fulls   []KeptFull // that a restore may begin with, oldest first; at least one
	Objects []Object   // to read behind the first full: the largest that there are
	From    int64      // the first full's revision
	To      int64      // the last revision that is kept
	Begin   time.Time  // from when on a time can be gone back to: when From had become the present, to the second
	End     time.Time  // when To was still the present, as far as is known: markers tell it to the second, merged objects to the hour

	Beyond error // why the object behind its end is not part of it; nil if there is none
	Behind error // why what lies behind its end cannot be read, or does not follow it; nil if nothing does, or what was begun anew

	index *index           // what belongs to it
	end   segment.Position // what begins here doesn't, or isn't there
	bound segment.Position // what begins here or behind it doesn't; zero if nothing does
}

// chains finds those that fulls begin.
func (a *Archive) chains(ctx context.Context, fulls []KeptFull, x *index) (chains []Chain, err error) {
	for i := 0; i < len(fulls); {
		if !fulls[i].Usable() {
			i++
			continue
		}
		chain, length, err := a.chain(ctx, fulls[i:], x)
		if err != nil {
			return nil, err
		}
		chains = append(chains, chain)
		i += length
	}
	return chains, nil
}

// chain follows the one that begins with the first of fulls. It returns how many of them it covers.
func (a *Archive) chain(ctx context.Context, fulls []KeptFull, x *index) (chain Chain, covered int, err error) {
	first := fulls[0]
	chain = Chain{From: first.Revision, To: first.Revision, Begin: first.Since(), End: first.Since()}
	if chain.bound, err = a.nextChain(ctx, fulls, x); err != nil {
		return chain, 0, err
	}
	chain.index = x.before(chain.bound)
	end, err := a.lead(ctx, &chain, first)
	if err == nil {
		end, err = a.leadAcross(ctx, &chain, fulls, end)
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
			chain.To, chain.End = max(chain.To, full.Revision), later(chain.End, full.Time)
		}
	}
	chain.To = max(chain.To, end.Revision-1)
	return chain, covered, nil
}

// lead follows the objects behind a full to the last one that can be believed, and returns where that ends.
func (a *Archive) lead(ctx context.Context, chain *Chain, full KeptFull) (segment.Position, error) {
	for {
		chain.Objects = chain.index.follow(full.Next)
		if len(chain.Objects) == 0 {
			return full.Next, nil
		}
		last := chain.Objects[len(chain.Objects)-1]
		end, at, err := a.end(ctx, last, full.Cluster)
		if err == nil {
			chain.End = later(chain.Begin, at)
		}
		if err == nil || !Disbelieved(err) {
			return end, err
		}
		chain.Beyond = err
		chain.index = chain.index.without(func(o Object) bool { return o.Name() == last.Name() })
	}
}

// leadAcross looks whether the chain that ends somewhere by the names of its objects goes on behind each of its fulls. Where nothing is
// listed that begins there, the segment may be missing from the listing alone, the full may lie within a segment, so that nothing
// leads on from it, or the chain ends there.
func (a *Archive) leadAcross(ctx context.Context, chain *Chain, fulls []KeptFull, end segment.Position) (segment.Position, error) {
	for i := range fulls {
		full := &fulls[i]
		if full.Err != nil || full.Passed || full.Next.Compare(end) > 0 {
			continue
		}
		if _, found := chain.index.at(full.Next); found || chain.index.after(full.Next).IsZero() {
			continue
		}
		hidden, err := a.hiddenAt(ctx, full.Full)
		if err != nil {
			return end, err
		}
		if hidden != nil {
			chain.index = chain.index.with(*hidden)
		} else if full.Next == fulls[0].Next {
			continue // the chain has no more than its first full
		} else if full.Passed, err = a.passed(ctx, full.Full, chain.index); err != nil {
			return end, err
		} else if !full.Passed {
			chain.index = chain.index.upTo(full.Next, fmt.Errorf("%w: nothing begins at %s", ErrHole, full.Next))
		}
		if end, err = a.lead(ctx, chain, fulls[0]); err != nil {
			return end, err
		}
	}
	return end, nil
}

// hiddenAt is the segment behind a full that no listing has, though it is there; nil if there is none.
func (a *Archive) hiddenAt(ctx context.Context, full Full) (*Object, error) {
	object := Object{Level: Segment, Generation: full.Generation, Start: full.Next, Modified: full.Time}
	manifest, err := a.firstManifest(ctx, object)
	switch {
	case Unusable(err):
		return nil, nil
	case err != nil:
		return nil, err
	case manifest.Before != full.Chain || manifest.Cluster != full.Cluster:
		return nil, nil
	}
	return &object, nil
}

// nextChain is where the chain behind the one of the first full begins; zero if there is none. There is a hole before it, which
// names don't show. It notes which fulls the chain has passed.
func (a *Archive) nextChain(ctx context.Context, fulls []KeptFull, x *index) (segment.Position, error) {
	for i := range fulls {
		full := &fulls[i]
		if full.Err != nil || !full.BeginsChain() || full.Next.Compare(fulls[0].Next) <= 0 {
			continue
		}
		passed, err := a.passed(ctx, full.Full, x)
		if err != nil || !passed {
			return full.Next, err
		}
		full.Passed = true
	}
	return segment.Position{}, nil
}

// passed tells whether the chain before a full goes on across it, though it was made to begin another one: two members may have
// made one each, or one had lost its office meanwhile. What cannot be believed goes nowhere.
func (a *Archive) passed(ctx context.Context, full Full, x *index) (bool, error) {
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
	manifest, err := a.firstManifest(ctx, object)
	if Disbelieved(err) {
		return false, nil
	}
	if manifest.Position == full.Next {
		return manifest.Before != full.Chain, err
	}
	return manifest.Next().Compare(full.Next) > 0, err
}

// end tells where an object of a cluster ends, and until when at most. What was merged is of the generation's own.
func (a *Archive) end(ctx context.Context, last Object, cluster string) (segment.Position, time.Time, error) {
	if last.Level != Segment {
		why, err := a.pretence(ctx, last)
		return last.Next, last.Modified, cmp.Or(why, err)
	}
	manifest, err := a.firstManifest(ctx, last)
	if err == nil && manifest.Cluster != cluster {
		err = a.foreign(last.Name(), manifest.Cluster, cluster)
	}
	if err != nil {
		return segment.Position{}, time.Time{}, err
	}
	if manifest.To.IsZero() {
		return manifest.Next(), last.Modified, nil
	}
	return manifest.Next(), manifest.To, nil
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
