package retention

import (
	"cmp"
	"slices"
	"time"

	"etcd-wrapper/backup/archive"
)

// Facts are what a plan is made of.
type Facts struct {
	History      *archive.History
	RestoreTests []archive.Result // of the newest generation; that of the last one suffices
	Now          time.Time        // by this machine's clock
	Store        time.Time        // by the store's clock, at that moment; see StoreClock
	Known        int64            // a revision that is known to be in the store, in the newest generation; 0 if none is
}

// Plan says what goes and what stays. It is a value: nothing happens before Execute.
type Plan struct {
	Policy Policy
	From   time.Time // where the window of points begins
	Doubts []string  // sentences; while there are any, nothing goes
	Items  []Item    // what there is, by generation; within one what is oldest first
}

// Kind is what an item of a plan is.
type Kind string

// The kinds.
const (
	Full       Kind = "full"
	Segments   Kind = "segments"   // several in a row, of all levels
	Remains    Kind = "remains"    // of fulls that were never finished, or whose deletion was cut off
	Generation Kind = "generation" // a whole one
)

// Item is a part of what is kept that goes or stays as a whole. In JSON it is what backup prune tells of it.
type Item struct {
	Kind       Kind      `json:"kind"`
	Generation int       `json:"generation"`
	Name       string    `json:"name"`               // of a full; of the first object of others
	Time       time.Time `json:"time,omitzero"`      // when what it holds was the present; zero if that is not known
	Revision   int64     `json:"revision,omitempty"` // of a full; the first one of segments
	Objects    int       `json:"objects,omitempty"`  // how many; 0 if that is not known
	Bytes      int64     `json:"bytes"`              // in the store, as far as is known
	Goes       bool      `json:"goes"`
	Why        string    `json:"why"` // a clause

	names []string // of the objects of segments and remains
	proof bool     // others go because this full stays
}

// Goes are the items that go, in the order in which they do. There are none while there is doubt.
func (p Plan) Goes() (items []Item) {
	for _, item := range p.Items {
		if item.Goes && len(p.Doubts) == 0 {
			items = append(items, item)
		}
	}
	return items
}

// slack is how far the clocks of members may lie apart: what was the present when the window begins is looked for before that.
const slack = 5 * time.Minute

// remainsAfter is for how long an upload without a manifest may be one that is still made, by a writer that was paused.
const remainsAfter = day

// Make makes a plan. It looks at nothing but the facts.
func Make(policy Policy, facts Facts) Plan {
	plan := Plan{Policy: policy, From: facts.Now.Add(-policy.Points), Doubts: doubts(policy, facts)}
	if facts.History == nil {
		return plan
	}
	for i, generation := range facts.History.Generations {
		if i < len(facts.History.Generations)-1 {
			plan.Items = append(plan.Items, plan.old(generation, facts.History.Generations[i+1].Created))
			continue
		}
		plan.Items = append(plan.Items, plan.newest(generation)...)
	}
	return plan
}

// old decides about a generation that a restore has ended. It stays whole while a point of it is promised; its last revision was
// the present until the next one began.
func (p Plan) old(g archive.Generational, next time.Time) Item {
	item := Item{Kind: Generation, Generation: g.Number, Name: archive.GenerationPrefix(g.Number), Time: g.Created}
	for _, full := range g.Fulls {
		item.Bytes += full.Size
	}
	for _, object := range g.Objects {
		item.Bytes += object.Size
	}
	end := latest(endOf(g), next)
	switch {
	case !end.Before(p.From.Add(-slack)):
		item.Why = "some of it is within points"
	case !end.Before(p.reach()):
		item.Why = "a full of it may be kept for its hour, day or week"
	default:
		item.Goes, item.Why = true, "all of it is older than what is kept"
	}
	return item
}

// endOf is the latest time that is known of a generation.
func endOf(g archive.Generational) time.Time {
	end := g.Created
	for _, at := range times(g) {
		end = latest(end, at)
	}
	return end
}

// times are all that a generation tells about when something was the present or was written.
func times(g archive.Generational) (all []time.Time) {
	for _, full := range g.Fulls {
		all = append(all, timeOf(full), full.Stored)
	}
	for _, object := range g.Objects {
		all = append(all, object.Modified)
	}
	for _, chain := range g.Chains {
		all = append(all, chain.End)
	}
	return all
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// newest decides about the generation that is being written.
func (p Plan) newest(g archive.Generational) (items []Item) {
	base := p.base(g)
	for _, full := range g.Fulls {
		items = append(items, p.full(full, g, base))
	}
	items = append(items, segments(g, base.Next)...)
	items = append(items, p.remains(g, base.Next)...)
	slices.SortStableFunc(items, func(a, b Item) int { return cmp.Compare(a.Revision, b.Revision) })
	return items
}

// base is the full from which on everything stays, so that every revision of the window can still be gone back to: the newest
// verified one before the window. The store has to agree that it is so old: one that was made while its maker's clock was
// behind would have everything before it go. A full that the chain has passed leads to nothing behind it. The zero full has
// everything behind it.
func (p Plan) base(g archive.Generational) archive.KeptFull {
	begin := p.From.Add(-slack)
	for _, full := range slices.Backward(g.Fulls) {
		if verified(full) && !full.Passed && !latest(full.Time, full.Stored).After(begin) {
			return full
		}
	}
	return archive.KeptFull{}
}

// newestVerified is the last full up to a time that was restored once; the zero full if there is none.
func newestVerified(fulls []archive.KeptFull, until time.Time) archive.KeptFull {
	for _, full := range slices.Backward(fulls) {
		if verified(full) && !full.Time.After(until) {
			return full
		}
	}
	return archive.KeptFull{}
}

func verified(full archive.KeptFull) bool {
	return full.Err == nil && full.Result != nil && full.Result.Outcome == archive.Verified
}
