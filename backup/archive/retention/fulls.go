package retention

import (
	"cmp"
	"fmt"
	"time"

	"etcd-wrapper/backup/archive"
)

// full decides about a full of the newest generation.
func (p Plan) full(full archive.KeptFull, g archive.Generational, base archive.KeptFull) Item {
	item := Item{
		Kind: Full, Generation: g.Number, Name: full.Label, Time: timeOf(full), Revision: revisionOf(full), Objects: 2, Bytes: full.Size,
	}
	kept, slot := p.slot(full, g.Fulls)
	switch {
	case base.Label == "":
		item.Why = notCovered
	case full.Err != nil && !item.Time.Before(p.reach()):
		item.Why = "its manifest cannot be believed, so it stays as long as any full"
	case full.Label == base.Label:
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

// timeOf is when a full was the present; of one whose manifest cannot be believed, what its name says.
func timeOf(full archive.KeptFull) time.Time {
	if full.Err == nil {
		return full.Time
	}
	_, at := parseLabel(full.Label)
	return at
}

func revisionOf(full archive.KeptFull) int64 {
	if full.Err == nil {
		return full.Revision
	}
	revision, _ := parseLabel(full.Label)
	return revision
}

// parseLabel undoes archive.FullName. What is none has the zero time, and is as old as can be.
func parseLabel(label string) (revision int64, at time.Time) {
	var text string
	if _, err := fmt.Sscanf(label, "%d-%s", &revision, &text); err != nil {
		return 0, time.Time{}
	}
	at, err := time.Parse("20060102T150405Z", text)
	if err != nil || archive.FullName(revision, at) != label {
		return 0, time.Time{}
	}
	return revision, at
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
		if newestVerified(all, begin.Add(s.length-1)).Label == full.Label {
			return true, fmt.Sprintf("the last verified one of the %s from %s", s.word, begin.Format("2006-01-02 15:04"))
		}
	}
	return false, ""
}
