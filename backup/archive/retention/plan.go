// Package retention says which backups may go and lets them go, as --backup-keep wants it, and makes few large objects of the
// many small ones that stay: a restore then fetches tens of objects and not thousands, and a day's listing is short.
//
// A Plan is pure: it is made of what is listed, the policy and the time, and can be shown before anything is deleted. It
// counts verified backups only, and comes to nothing where one of the safety checks fails: of the listing, the clocks, the last verification.
//
// A Merger makes minutes of segments, and hours of minutes. It deletes what it has merged once no reader can be on its way to it.
package retention

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store"
)

// Of makes a plan of what a caller has just listed in the archive. known is a revision that was stored in the newest generation before that,
// 0 if the caller knows none. The store's clock is asked only if something would go, since that creates an object.
func Of(ctx context.Context, a *archive.Archive, history *archive.History, policy Policy, now time.Time, known int64) (plan Plan, err error) {
	facts := Facts{History: history, Now: now, Store: now, Known: known}
	if newest := history.Newest(); newest != nil {
		if facts.RestoreTests, err = a.RestoreTests(ctx, newest.Number, now.Add(-week)); err != nil {
			return Plan{}, fmt.Errorf("cannot list what tests showed: %w", err)
		}
	}
	plan = Make(policy, facts)
	if len(plan.Goes()) == 0 {
		return plan, nil
	}
	if facts.Store, err = store.Clock(ctx, a.Store()); err != nil {
		plan.Unsafe = append(plan.Unsafe, err.Error())
		return plan, nil
	}
	return Make(policy, facts), nil
}

// Facts are what a plan is made of.
type Facts struct {
	History      *archive.History
	RestoreTests []archive.Result // of the newest generation; that of the last one suffices
	Now          time.Time        // by this machine's clock
	Store        time.Time        // by the store's clock, at that moment
	Known        int64            // a revision that is known to be in the store, in the newest generation; 0 if none is
}

// Plan says what goes and what stays. It is a value: nothing happens before Execute.
type Plan struct {
	Policy Policy
	From   time.Time // where the window of points begins
	Unsafe []string  // what the safety checks found, sentences; while there are any, nothing goes
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

// Goes are the items that go, in the order in which they do. There are none while a safety check fails.
func (p Plan) Goes() (items []Item) {
	for _, item := range p.Items {
		if item.Goes && len(p.Unsafe) == 0 {
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
	plan := Plan{Policy: policy, From: facts.Now.Add(-policy.Points), Unsafe: check(policy, facts)}
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
	end := archive.Later(endOf(g), next)
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
	return slices.MaxFunc(append(moments(g), moment{Time: g.Created}), byTime).Time
}

// moment is when something was the present or was written.
type moment struct {
	time.Time
	of string // that, for people
}

func byTime(a, b moment) int { return a.Compare(b.Time) }

// moments are all that a generation tells of.
func moments(g archive.Generational) (all []moment) {
	for _, full := range g.Fulls {
		if full.Err == nil { // else anybody may have chosen the time in its name
			all = append(all, moment{full.Time, "full " + full.Name()})
		}
		all = append(all, moment{full.Stored, "full " + full.Name()})
	}
	for _, object := range g.Objects {
		all = append(all, moment{object.Modified, "something"})
	}
	for _, chain := range g.Chains {
		all = append(all, moment{chain.End, "something"})
	}
	return all
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
	return newestVerified(g.Fulls, func(full archive.KeptFull) bool {
		return !full.Passed && !archive.Later(full.Time, full.Stored).After(begin)
	})
}

// newestVerified is the last full that fits and was restored once; the zero full if there is none.
func newestVerified(fulls []archive.KeptFull, fits func(archive.KeptFull) bool) archive.KeptFull {
	for _, full := range slices.Backward(fulls) {
		if verified(full) && fits(full) {
			return full
		}
	}
	return archive.KeptFull{}
}

func verified(full archive.KeptFull) bool {
	return full.Err == nil && full.Result != nil && full.Result.Outcome == archive.Verified
}

// full decides about a full of the newest generation.
func (p Plan) full(full archive.KeptFull, g archive.Generational, base archive.KeptFull) Item {
	item := Item{
		Kind: Full, Generation: g.Number, Name: full.Name(), Time: full.Time, Revision: full.Revision, Objects: 2, Bytes: full.Size,
	}
	kept, slot := p.slot(full, g.Fulls)
	switch {
	case base.Next.IsZero():
		item.Why = notCovered
	case full.Err != nil && !full.Stored.Before(p.reach()): // its name proves nothing
		item.Why = "its manifest cannot be believed, so it stays as long as any full"
	case full.Name() == base.Name():
		item.proof, item.Why = verified(full), "the window of points begins with it"
	case full.Err == nil && !before(full, base):
		item.Why = "within points"
	case kept:
		item.proof, item.Why = true, slot
	default:
		item.Goes, item.Why = true, tooOld(full)
	}
	return item
}

const notCovered = "there is no verified full before the window of points yet"

// before tells whether one full was made before another one. In a cluster at rest they have one revision.
func before(a, b archive.KeptFull) bool {
	return cmp.Or(a.Next.Compare(b.Next), a.Time.Compare(b.Time)) < 0
}

func tooOld(full archive.KeptFull) string {
	switch {
	case full.Err != nil:
		return "older than what is kept, and its manifest cannot be believed"
	case full.Result == nil:
		return "before points, and never verified"
	case full.Result.Outcome == archive.Failed:
		return "before points, and its verification failed"
	default:
		return "before points, and not the last one of an hour, day or week that is kept"
	}
}

// span is a kind of time of which the last verified full stays.
type span struct {
	word   string
	length time.Duration
	count  int
}

func (p Policy) spans() []span {
	return []span{{"hour", time.Hour, p.Hourly}, {"day", day, p.Daily}, {"week", week, p.Weekly}}
}

// monday is the beginning of a week, in UTC.
var monday = time.Date(1970, time.January, 5, 0, 0, 0, 0, time.UTC)

// begin is the beginning of the span that a time lies in. Spans lie fixed, so that who is the last of one remains it.
func (s span) begin(at time.Time) time.Time {
	since := at.Sub(monday)
	if since < 0 { // a clock that was never set
		return time.Time{}
	}
	return monday.Add(since / s.length * s.length)
}

// first is the beginning of the earliest span that counts, where the window of points begins at a time.
func (s span) first(window time.Time) time.Time {
	return s.begin(window).Add(-time.Duration(s.count-1) * s.length)
}

// reach is the time before which nothing is promised.
func (p Plan) reach() time.Time {
	reach := p.From
	for _, s := range p.Policy.spans() {
		if first := s.first(p.From); s.count > 0 && first.Before(reach) {
			reach = first
		}
	}
	return reach
}

// slot tells whether a full is the last verified one of an hour, a day or a week that counts, and of which.
func (p Plan) slot(full archive.KeptFull, all []archive.KeptFull) (kept bool, which string) {
	if !verified(full) {
		return false, ""
	}
	for _, s := range p.Policy.spans() {
		begin := s.begin(full.Time)
		if s.count == 0 || begin.Before(s.first(p.From)) {
			continue
		}
		within := func(other archive.KeptFull) bool { return other.Time.Before(begin.Add(s.length)) }
		if newestVerified(all, within).Name() == full.Name() {
			return true, fmt.Sprintf("the last verified one of the %s from %s", s.word, begin.Format("2006-01-02 15:04"))
		}
	}
	return false, ""
}

// segments is one item for those that lie wholly before the floor, and one for the rest. The name of a segment does not tell where it
// ends, and what others are called does not, either: one that was not read stays.
func segments(g archive.Generational, floor format.Position) (items []Item) {
	goes := Item{Kind: Segments, Generation: g.Number, Goes: true, Why: "before the full that the window of points begins with"}
	stays := Item{Kind: Segments, Generation: g.Number, Why: "within points"}
	if floor.IsZero() {
		stays.Why = notCovered
	}
	for _, object := range g.Objects {
		item := &stays
		if !object.Next.IsZero() && object.Next.Compare(floor) <= 0 {
			item = &goes
		}
		item.add(object.Name(), object.Start.Revision, object.Size)
	}
	for _, item := range []Item{goes, stays} {
		if item.Objects > 0 {
			items = append(items, item)
		}
	}
	return items
}

// add adds an object, which has a first revision.
func (i *Item) add(name string, revision, bytes int64) {
	if i.Objects == 0 {
		i.Name, i.Revision = name, revision
	}
	i.Objects++
	i.Bytes += bytes
	i.names = append(i.names, name)
}

// remains is one item for objects of fulls that never became any, so old that nobody makes them any longer.
func (p Plan) remains(g archive.Generational, floor format.Position) []Item {
	item := Item{Kind: Remains, Generation: g.Number, Goes: true, Why: "of a full that was never finished"}
	for _, orphan := range g.Orphans {
		label, _, _ := strings.Cut(strings.TrimPrefix(orphan.Name, archive.GenerationPrefix(g.Number)+"full/"), "/")
		revision, at, err := archive.ParseFullName(label)
		if err != nil || revision >= floor.Revision || !archive.Later(at, orphan.Stored).Before(p.From.Add(-remainsAfter)) {
			continue // what is not ours, or may still be made
		}
		if item.Objects == 0 {
			item.Time = at
		}
		item.add(orphan.Name, revision, orphan.Size)
	}
	if item.Objects == 0 {
		return nil
	}
	return []Item{item}
}

// ago is for sentences.
func ago(now, at time.Time) string { return now.Sub(at).Round(time.Second).String() }
