package archive

import (
	"context"
	"errors"
	"time"

	"etcd-wrapper/backup/format/seal"
	"etcd-wrapper/backup/store"
)

// History is what is kept.
type History struct {
	Cluster     *Cluster // nil if nothing was ever kept here, or the birth certificate is not to be believed
	Generations []Generational
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

// KeptFull is a full of a listing.
type KeptFull struct {
	Full
	Label      string    // its name, also when the manifest cannot be read
	Size       int64     // of its objects, bytes
	Stored     time.Time // when its manifest was created, by the store's clock
	Verdict    *Verdict  // the newest; nil if there is none
	VerdictErr error     // why that one is not believed
	Err        error     // why its manifest is not believed
	Passed     bool      // the chain before goes on across it, and nothing leads on from it

	fault error // why its data were found to be of no use
}

// Usable tells whether a restore may begin with it: its manifest is believed, and no test restore of it failed.
func (f KeptFull) Usable() bool {
	return f.Err == nil && f.fault == nil && (f.Verdict == nil || f.Verdict.Outcome != Failed)
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
	for i := range h.Generations {
		if h.Generations[i].Number == number {
			return &h.Generations[i]
		}
	}
	return nil
}

// History lists everything. It reads the manifests and verdicts of fulls, but not those of segments, save the first and the
// last of each chain.
func (a *Archive) History(ctx context.Context) (*History, error) { return a.historyWithout(ctx, nil) }

// historyWithout is what is kept but for what is known to be of no use.
func (a *Archive) historyWithout(ctx context.Context, known faults) (history *History, err error) {
	for range listings { // what was listed may be merged and deleted before it is read
		history, err = a.history(ctx, known)
		if !errors.Is(err, store.ErrNotFound) {
			break
		}
	}
	return history, err
}

func (a *Archive) history(ctx context.Context, known faults) (*History, error) {
	history := &History{}
	cluster, err := a.Cluster(ctx)
	switch {
	case err == nil:
		history.Cluster = &cluster
	case !errors.Is(err, store.ErrNotFound) && !Disbelieved(err): // what is kept can be read without it
		return nil, err
	}
	generations, err := a.Generations(ctx)
	if err != nil {
		return nil, err
	}
	for _, generation := range generations {
		kept, err := a.generational(ctx, generation, known)
		if err != nil {
			return nil, err
		}
		history.Generations = append(history.Generations, kept)
	}
	return history, nil
}

func (a *Archive) generational(ctx context.Context, generation Generation, known faults) (kept Generational, err error) {
	kept.Generation = generation
	if kept.Fulls, kept.Orphans, err = a.fulls(ctx, generation); err != nil {
		return kept, err
	}
	for i := range kept.Fulls {
		kept.Fulls[i].fault = known.of(DataName(generation.Number, kept.Fulls[i].Label))
	}
	if kept.index, err = a.indexed(ctx, generation.Number); err != nil {
		return kept, err
	}
	kept.Objects = kept.index.all()
	kept.index = kept.index.without(func(o Object) bool { return known.of(o.Name()) != nil })
	kept.index.faults = known
	kept.Chains, err = a.chains(ctx, kept.Fulls, kept.index)
	kept.lookBehind()
	return kept, err
}

// Disbelieved tells whether it is something that was read which is wrong, and not the reading.
func Disbelieved(err error) bool {
	return errors.Is(err, seal.ErrDamaged) || errors.Is(err, seal.ErrUntrusted) || errors.Is(err, ErrForeign)
}

// Unusable tells whether nothing can be made of an object: it is gone, what it says is not believed, or its parts don't follow one
// another. Other errors say that it could not be read.
func Unusable(err error) bool {
	return Disbelieved(err) || errors.Is(err, ErrHole) || errors.Is(err, store.ErrNotFound)
}
