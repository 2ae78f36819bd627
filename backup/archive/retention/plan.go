// Package retention deletes the backups that --backup-keep no longer requires and merges small objects into larger
// ones, so that listings stay short and a restore fetches tens of objects instead of thousands.
//
// A Plan is a pure function of a listing, the policy and the time, and can be shown before anything is deleted. A
// full snapshot replaces older backups only if it has been verified. Nothing is deleted if a safety check of the
// clocks, the listing or the last restore test fails.
//
// A Merger merges segments into minutes and minutes into hours, and deletes the sources when no reader needs them
// anymore.
package retention

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store"
)

// NewPlan returns a plan for a history that was just listed. known is a revision that was stored in the newest
// generation before the listing, or 0. NewPlan reads the store's clock only if there is something to delete,
// because reading the clock creates an object.
func NewPlan(ctx context.Context, a *archive.Archive, history *archive.History, policy Policy, now time.Time, known int64) (plan Plan, err error) {
	facts := Facts{History: history, Now: now, Store: now, Known: known}
	if newest := history.Newest(); newest != nil {
		if facts.RestoreTests, err = a.RestoreTests(ctx, newest.Number, now.Add(-week)); err != nil {
			return Plan{}, fmt.Errorf("cannot list restore tests: %w", err)
		}
	}
	for {
		if plan = Make(policy, facts); len(plan.Deletes()) == 0 {
			return plan, nil
		}
		base := plan.base(*history.Newest())
		crossed, err := a.IsCrossed(ctx, base.Full)
		if err != nil {
			return Plan{}, fmt.Errorf("cannot check the segments after full snapshot %s: %w", base.Name(), err)
		}
		if !crossed {
			break
		}
		base.Passed = true
	}
	if facts.Store, err = store.Clock(ctx, a.Store()); err != nil {
		plan.Unsafe = append(plan.Unsafe, err.Error())
		return plan, nil
	}
	return Make(policy, facts), nil
}

// Facts contains the input for a plan.
type Facts struct {
	History      *archive.History
	RestoreTests []archive.Result // restore tests of the newest generation; only the last one matters
	Now          time.Time        // according to this machine's clock
	Store        time.Time        // time according to the store's clock at Now
	Known        int64            // revision that was stored in the newest generation before the listing; 0 if unknown
}

// A Plan lists the items to delete and to keep. Execute executes the plan.
type Plan struct {
	Policy Policy
	From   time.Time // start of the point-in-time window
	Unsafe []string  // failed safety checks; if there are any, nothing is deleted
	Items  []Item    // ordered by generation, then by age
}

// A Kind is the kind of an item.
type Kind string

// Item kinds.
const (
	Full       Kind = "full"
	Segments   Kind = "segments"   // consecutive objects of any level
	Remains    Kind = "remains"    // objects of incomplete or partly deleted full snapshots
	Generation Kind = "generation" // a whole generation
)

// An Item is deleted or kept as a whole. The JSON encoding is the output of backup prune.
type Item struct {
	Kind       Kind      `json:"kind"`
	Generation int       `json:"generation"`
	Name       string    `json:"name"`               // name of the full snapshot or of the first object
	Time       time.Time `json:"time,omitzero"`      // time of the content; zero if unknown
	Revision   int64     `json:"revision,omitempty"` // revision of the full snapshot, or first revision of the segments
	Objects    int       `json:"objects,omitempty"`  // number of objects; 0 if unknown
	Bytes      int64     `json:"bytes"`              // size in the store, if known
	Goes       bool      `json:"goes"`               // the plan deletes the item
	Why        string    `json:"why"`                // reason, as a clause

	names []string // object names of segments and remains
	proof bool     // other items may only be deleted if this full snapshot can be read
}

// Deletes returns the items to delete, in order, or nil if a safety check has failed.
func (p Plan) Deletes() (items []Item) {
	for _, item := range p.Items {
		if item.Goes && len(p.Unsafe) == 0 {
			items = append(items, item)
		}
	}
	return items
}

// slack is the maximum tolerated difference between the clocks of members. The point-in-time window is extended by
// this duration.
const slack = 5 * time.Minute

// remainsAfter is the minimum age, relative to the start of the point-in-time window, at which data without a
// manifest is deleted. No upload takes longer, even if the writer is suspended.
const remainsAfter = day

// Make returns the plan for the given policy and facts.
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
		plan.Items = append(plan.Items, plan.latest(generation)...)
	}
	return plan
}

// old determines whether to keep a generation that was ended by a restore. The whole generation is kept as long as
// the policy requires any point in it. The last revision was current until the next generation was created.
func (p Plan) old(g archive.GenerationContents, next time.Time) Item {
	item := Item{Kind: Generation, Generation: g.Number, Name: archive.GenerationPrefix(g.Number), Time: g.Created}
	for _, full := range g.Fulls {
		item.Bytes += full.Size
	}
	for _, object := range g.Objects {
		item.Bytes += object.Size
	}
	end := archive.MaxTime(endOf(g), next)
	switch {
	case !end.Before(p.From.Add(-slack)):
		item.Why = "partly in the point-in-time window"
	case !end.Before(p.requiredFrom()):
		item.Why = "may contain the last full snapshot of an hour, day or week that must be kept"
	default:
		item.Goes, item.Why = true, "older than the policy requires"
	}
	return item
}

// endOf returns the latest timestamp of a generation.
func endOf(g archive.GenerationContents) time.Time {
	return slices.MaxFunc(append(timestamps(g), timestamp{Time: g.Created}), byTime).Time
}

// A timestamp is a time at which an object was current or was written.
type timestamp struct {
	time.Time
	of string // object that the time belongs to, for messages
}

func byTime(a, b timestamp) int { return a.Compare(b.Time) }

// timestamps returns all known times of a generation.
func timestamps(g archive.GenerationContents) (all []timestamp) {
	for _, full := range g.Fulls {
		if full.Err == nil { // without a verified manifest, the time in the name may be forged
			all = append(all, timestamp{full.Time, "full snapshot " + full.Name()})
		}
		all = append(all, timestamp{full.Stored, "full snapshot " + full.Name()})
	}
	for _, object := range g.Objects {
		all = append(all, timestamp{object.Modified, "an object"})
	}
	for _, chain := range g.Chains {
		all = append(all, timestamp{chain.End, "an object"})
	}
	return all
}

// latest determines which items of the newest generation to keep.
func (p Plan) latest(g archive.GenerationContents) (items []Item) {
	base := p.base(g)
	for _, full := range g.Fulls {
		items = append(items, p.full(full, g, base))
	}
	items = append(items, segments(g, base.Next)...)
	items = append(items, p.incomplete(g, base.Next)...)
	slices.SortStableFunc(items, func(a, b Item) int { return cmp.Compare(a.Revision, b.Revision) })
	return items
}

// base returns the first full snapshot to keep: the newest verified snapshot before the point-in-time window, so that
// any revision in the window can be restored. The store's clock must confirm the age of the snapshot, because the
// writer's clock may have been behind. A full snapshot that the chain has passed cannot be the base, because no
// segments follow it. If there is no base, base returns the zero value, and everything is kept.
func (p Plan) base(g archive.GenerationContents) *archive.StoredFull {
	begin := p.From.Add(-slack)
	return lastVerified(g.Fulls, func(full archive.StoredFull) bool {
		return !full.Passed && !archive.MaxTime(full.Time, full.Stored).After(begin)
	})
}

// lastVerified returns the last verified full snapshot that satisfies fits, or the zero value if there is none.
func lastVerified(fulls []archive.StoredFull, fits func(archive.StoredFull) bool) *archive.StoredFull {
	for i, full := range slices.Backward(fulls) {
		if verified(full) && fits(full) {
			return &fulls[i]
		}
	}
	return &archive.StoredFull{}
}

func verified(full archive.StoredFull) bool {
	return full.Err == nil && full.Result != nil && full.Result.Outcome == archive.Verified
}

// full determines whether to keep a full snapshot in the newest generation.
func (p Plan) full(full archive.StoredFull, g archive.GenerationContents, base *archive.StoredFull) Item {
	item := Item{
		Kind: Full, Generation: g.Number, Name: full.Name(), Time: full.Time, Revision: full.Revision, Objects: 2, Bytes: full.Size,
	}
	kept, slot := p.slot(full, g.Fulls)
	switch {
	case base.Next.IsZero():
		item.Why = notCovered
	case full.Err != nil && !full.Stored.Before(p.requiredFrom()):
		// The time in the name may be forged, so the creation time decides how long the snapshot is kept.
		item.Why = "manifest cannot be verified; kept for the policy's longest retention period"
	case full.Name() == base.Name():
		item.proof, item.Why = verified(full), "start of the point-in-time window"
	case full.Err == nil && !isOlder(full, *base):
		item.Why = "in the point-in-time window"
	case kept:
		item.proof, item.Why = true, slot
	default:
		item.Goes, item.Why = true, tooOld(full)
	}
	return item
}

const notCovered = "no full snapshot before the point-in-time window has been verified yet"

// isOlder reports whether full snapshot a was taken before b, even if both have the same revision.
func isOlder(a, b archive.StoredFull) bool {
	return cmp.Or(a.Next.Compare(b.Next), a.Time.Compare(b.Time)) < 0
}

func tooOld(full archive.StoredFull) string {
	switch {
	case full.Err != nil:
		return "older than the policy requires; manifest cannot be verified"
	case full.Result == nil:
		return "older than the point-in-time window; never verified"
	case full.Result.Outcome == archive.Failed:
		return "older than the point-in-time window; restore test failed"
	default:
		return "older than the point-in-time window; not the last full snapshot of an hour, day or week that must be kept"
	}
}

// A span is an hour, a day or a week whose last verified full snapshot is kept.
type span struct {
	word   string
	length time.Duration
	count  int
}

func (p Policy) spans() []span {
	return []span{{"hour", time.Hour, p.Hourly}, {"day", day, p.Daily}, {"week", week, p.Weekly}}
}

// startOf returns the start of the span that contains the given time. Spans do not depend on the current time, so the
// last full snapshot of a past span never changes. Weeks start on Monday.
func (s span) startOf(at time.Time) time.Time { return at.UTC().Truncate(s.length) }

// firstStart returns the start of the earliest span for which a full snapshot is kept if the point-in-time window
// starts at the given time.
func (s span) firstStart(window time.Time) time.Time {
	return s.startOf(window).Add(-time.Duration(s.count-1) * s.length)
}

// requiredFrom returns the start of the earliest period that the policy requires.
func (p Plan) requiredFrom() time.Time {
	reach := p.From
	for _, s := range p.Policy.spans() {
		if first := s.firstStart(p.From); s.count > 0 && first.Before(reach) {
			reach = first
		}
	}
	return reach
}

// slot reports whether a full snapshot must be kept as the last verified snapshot of an hour, day or week, and
// describes that period.
func (p Plan) slot(full archive.StoredFull, all []archive.StoredFull) (kept bool, which string) {
	if !verified(full) {
		return false, ""
	}
	for _, s := range p.Policy.spans() {
		begin := s.startOf(full.Time)
		if s.count == 0 || begin.Before(s.firstStart(p.From)) {
			continue
		}
		within := func(other archive.StoredFull) bool { return other.Time.Before(begin.Add(s.length)) }
		if lastVerified(all, within).Name() == full.Name() {
			return true, fmt.Sprintf("last verified full snapshot of the %s starting %s", s.word, begin.Format("2006-01-02 15:04"))
		}
	}
	return false, ""
}

// segments returns an item for the objects that end before the floor and another item for the rest. Segments whose
// manifest has not been read are kept, because their names do not contain the end.
func segments(g archive.GenerationContents, floor format.Position) (items []Item) {
	deleted := Item{Kind: Segments, Generation: g.Number, Goes: true, Why: "before the full snapshot at the start of the point-in-time window"}
	kept := Item{Kind: Segments, Generation: g.Number, Why: "in the point-in-time window"}
	if floor.IsZero() {
		kept.Why = notCovered
	}
	for _, object := range g.Objects {
		item := &kept
		if !object.Next.IsZero() && object.Next.Compare(floor) <= 0 {
			item = &deleted
		}
		item.add(object.Name(), object.Start.Revision, object.Size)
	}
	for _, item := range []Item{deleted, kept} {
		if item.Objects > 0 {
			items = append(items, item)
		}
	}
	return items
}

// add adds an object to an item.
func (i *Item) add(name string, revision, bytes int64) {
	if i.Objects == 0 {
		i.Name, i.Revision = name, revision
	}
	i.Objects++
	i.Bytes += bytes
	i.names = append(i.names, name)
}

// incomplete returns an item for the objects of incomplete full snapshots that are too old to still be uploading.
func (p Plan) incomplete(g archive.GenerationContents, floor format.Position) []Item {
	item := Item{Kind: Remains, Generation: g.Number, Goes: true, Why: "never completed"}
	for _, orphan := range g.Orphans {
		label, _, _ := strings.Cut(strings.TrimPrefix(orphan.Name, archive.GenerationPrefix(g.Number)+"full/"), "/")
		revision, at, err := archive.ParseFullName(label)
		if err != nil || revision >= floor.Revision || !archive.MaxTime(at, orphan.Modified).Before(p.From.Add(-remainsAfter)) {
			continue // created by another program, or possibly still uploading
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

// formatSince formats a duration for messages.
func formatSince(now, at time.Time) string { return now.Sub(at).Round(time.Second).String() }

// keepFlag is the prefix of all errors about a policy.
const keepFlag = "--backup-keep"

const (
	day  = 24 * time.Hour
	week = 7 * day

	longestPoints = 10 * 365 * day
	mostFulls     = 10_000 // maximum of hourly, daily and weekly
)

// A Policy defines which backups are kept. The zero value does not require any backups.
type Policy struct {
	// Points is the length of the window before now in which any revision can be restored.
	Points time.Duration
	// Hourly, Daily and Weekly are the numbers of hours, days and weeks before the point-in-time window whose last
	// verified full snapshot is kept.
	Hourly, Daily, Weekly int
}

// ParsePolicy parses --backup-keep: points= (a duration such as 24h, 7d or 2w) and hourly=, daily= and weekly=
// (integers), separated by commas. Missing keys are 0. Errors start with the flag name.
func ParsePolicy(text string) (policy Policy, err error) {
	counts, given := map[string]*int{"hourly": &policy.Hourly, "daily": &policy.Daily, "weekly": &policy.Weekly}, map[string]bool{}
	for part := range strings.SplitSeq(text, ",") {
		key, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		count := counts[key]
		switch {
		case given[key]:
			return Policy{}, fmt.Errorf("%s: duplicate key %s", keepFlag, key)
		case key == "points":
			policy.Points, err = parsePoints(value)
		case count != nil:
			*count, err = parseCount(value)
		default:
			return Policy{}, fmt.Errorf("%s: unknown key %q; use points=, hourly=, daily= or weekly=", keepFlag, key)
		}
		if given[key] = true; err != nil {
			return Policy{}, fmt.Errorf("%s: %s %w", keepFlag, key, err)
		}
	}
	if policy == (Policy{}) {
		return policy, fmt.Errorf("%s: all values are 0, so only the newest backup would be kept", keepFlag)
	}
	return policy, nil
}

func parsePoints(text string) (time.Duration, error) {
	points, err := time.ParseDuration(text)
	for unit, length := range map[string]time.Duration{"d": day, "w": week} {
		number, ok := strings.CutSuffix(text, unit)
		if n, failed := strconv.Atoi(number); ok && failed == nil && n >= 0 && n <= int(longestPoints/length) {
			points, err = time.Duration(n)*length, nil
		}
	}
	if err != nil || points < 0 || points > longestPoints {
		return 0, fmt.Errorf("%q is not a valid duration (up to ten years, such as 24h, 7d or 2w)", text)
	}
	return points, nil
}

func parseCount(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > mostFulls {
		return 0, fmt.Errorf("%q is not an integer between 0 and %d", text, mostFulls)
	}
	return n, nil
}

// String formats the policy for ParsePolicy.
func (p Policy) String() string {
	return fmt.Sprintf("points=%s,hourly=%d,daily=%d,weekly=%d", zeros.ReplaceAllString(p.Points.String(), "$1$2"), p.Hourly, p.Daily, p.Weekly)
}

// zeros matches trailing zero minutes and seconds of a duration.
var zeros = regexp.MustCompile(`(h)0m0s$|(m)0s$`)
