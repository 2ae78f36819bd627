package archive

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"etcd-wrapper/backup/format/segment"
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
	Beyond     error     // why what lies behind the latest revision cannot be read; nil if nothing does, or if another one is the target
	Known      int64     // the last revision that is told of by names, of the path's generation; 0 if another one than the latest is the target

	// Fetched is told of bytes of objects as Read reads them, if it is not nil. Whoever reads sets it.
	Fetched func(bytes int)

	index *index
	bound segment.Position // of the chain
	end   segment.Position // nothing is read from there on; zero means that Revision alone is the end
	until time.Time        // no bucket that changed later; zero means any

	target Target
	faults faults // that it does not lead by
}

// Lost is how many revisions at least lie behind the path's and cannot be read: they are told of by names. What names don't
// tell has a Beyond all the same.
func (p Path) Lost() int64 { return max(0, p.Known-p.Revision) }

// Find finds how to get to a target. A time behind the newest chain's end means its end, if nothing is known to have come later, and
// so does one behind the last chain of a generation, up to the beginning of the next generation. The latest revision is the newest
// generation's; as long as that has nothing, it is what was restored into it. ErrNotKept says that the target isn't kept, and what is.
func (a *Archive) Find(ctx context.Context, target Target) (Path, error) {
	return a.find(ctx, target, nil)
}

// find overlooks what is known to be of no use, and what turns out to be.
func (a *Archive) find(ctx context.Context, target Target, known faults) (Path, error) {
	for {
		path, err := a.findOnce(ctx, target, known)
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

func (a *Archive) findOnce(ctx context.Context, target Target, known faults) (Path, error) {
	history, err := a.historyWithout(ctx, known)
	if err != nil {
		return Path{}, err
	}
	sought := history.resolve(target)
	for g := len(history.Generations) - 1; g >= 0; g-- {
		generation := history.Generations[g]
		if sought.Generation != 0 && sought.Generation != generation.Number {
			continue
		}
		for c := len(generation.Chains) - 1; c >= 0; c-- {
			chain := generation.Chains[c]
			if chain.has(sought, history.stood(g, c)) {
				return a.path(ctx, generation, chain, sought)
			}
		}
	}
	return Path{}, a.notKept(history, target)
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

// notKept says what is kept in the place of a target, and why that isn't more.
func (a *Archive) notKept(history *History, target Target) error {
	err := fmt.Errorf("%s is %w in %s, which has %s", target, ErrNotKept, a.store, history.windows())
	if newest := history.Newest(); newest != nil {
		if beyond := newest.beyond(newest.lastChain()); beyond != nil {
			err = fmt.Errorf("%w; what follows cannot be read: %w", err, beyond)
		}
	}
	return err
}

// stood is until when a chain's last revision was the present, as far as is known: the last one of a generation was until the next
// generation began.
func (h *History) stood(g, c int) time.Time {
	switch chains := h.Generations[g].Chains; {
	case c < len(chains)-1:
		return chains[c].End
	case g < len(h.Generations)-1:
		return later(chains[c].End, h.Generations[g+1].Created.Add(-1))
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
func (a *Archive) path(ctx context.Context, generation Generational, chain Chain, target Target) (Path, error) {
	path := Path{
		Generation: generation.Generation, Full: chain.Fulls[0].Full, Revision: chain.To, Time: chain.End,
		index: chain.index, bound: chain.bound, until: target.Time, target: target,
	}
	if target.Revision != 0 {
		path.Revision, path.Time = target.Revision, time.Time{}
	}
	for _, full := range chain.Fulls {
		if full.Revision <= path.Revision && (target.Time.IsZero() || !full.Since().After(target.Time)) {
			path.Full = full.Full
		}
	}
	objects, beyond := chain.index.follow(path.Full.Next), generation.beyond(chain)
	switch {
	case target.Latest():
		path.Beyond, path.Known = beyond, generation.told()
	case target.Revision == 0:
		if err := a.reaches(ctx, chain, objects, target, beyond); err != nil {
			return Path{}, err
		}
		known, err := a.at(ctx, objects, path.Full, target.Time)
		if err != nil {
			return Path{}, err
		}
		path.Revision, path.Time = min(known.Revision, chain.To), known.Time
	}
	for _, object := range objects {
		if object.Start.Revision <= path.Revision+1 {
			path.Objects = append(path.Objects, object)
		}
	}
	return path, nil
}

// windows lists what can be gone back to, for people.
func (h *History) windows() string {
	var all []string
	for _, generation := range h.Generations {
		for _, chain := range generation.Chains {
			all = append(all, fmt.Sprintf("revisions %d to %d (%s to %s)", chain.From, chain.To,
				chain.Begin.UTC().Format(time.RFC3339), chain.End.UTC().Format(time.RFC3339)))
		}
	}
	if len(all) == 0 {
		return "nothing that can be restored"
	}
	return strings.Join(all, ", ")
}
