package backup

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/facts"
	"etcd-wrapper/backup/writer"
)

// Facts is the state of the backups at one moment.
type Facts struct {
	Shipped writer.Facts
	Listed  StoreContents
	Unable  *facts.Problem // why no backups can be made for now; nil while they can be made
	Undone  *facts.Problem // a failing maintenance task, or what blocks deletions; nil if there is none
}

// Facts returns the current state from memory.
func (b *Backups) Facts() Facts {
	known := Facts{
		Shipped: writer.Facts{Backups: facts.Backups{Role: facts.Waiting, SpoolLimit: b.options.SpoolLimit}},
		Unable:  b.unable.Load(), Undone: b.undone.Load(),
	}
	if w := b.currentWriter(); w != nil {
		known.Shipped = w.Facts()
	}
	if listed := b.listed.Load(); listed != nil {
		known.Listed = *listed
	}
	known.Listed.Store = b.options.Store.String()
	return known
}

// Published returns the current state as the status document shows it.
func (b *Backups) Published() *facts.Backups { return b.Facts().document() }

func (f Facts) document() *facts.Backups {
	document, listed := f.Shipped.Backups, f.Listed.Backups
	document.Store, document.StoredBytes, document.LastVerification = listed.Store, listed.StoredBytes, listed.LastVerification
	document.Window, document.Windows, document.LastFullSnapshot = listed.Window, listed.Windows, listed.LastFullSnapshot
	document.Problem = cmp.Or(f.Unable, document.Problem, f.Undone)
	if document.Window != nil {
		window := f.window()
		document.Window, document.Windows = &window, f.windowsUpTo(window)
	}
	if made, listed := f.Shipped.LastFull, document.LastFullSnapshot; made != nil && (listed == nil || made.Time.After(listed.At)) {
		document.LastFullSnapshot = &facts.FullSnapshot{Revision: made.Revision, At: made.Time, Bytes: made.Data.Bytes, Reason: made.Reason}
	}
	return &document
}

// window returns the restorable revisions: those of the last listing, extended to what this writer has stored since.
func (f Facts) window() facts.Window {
	window := f.Listed.window()
	if f.Listed.Cut == nil && f.Shipped.Revision >= window.ToRevision { // otherwise another member writes, or this one has not read the store yet
		window.ToRevision, window.To = f.Shipped.Revision, time.Now().Add(-f.Shipped.Lag).Truncate(time.Second)
	}
	return window
}

// windowsUpTo returns the windows of the last listing. The last one ends with the given window and includes the snapshot
// made since.
func (f Facts) windowsUpTo(end facts.Window) []facts.GenerationWindow {
	windows := slices.Clone(f.Listed.Windows) // the listing is shared
	last := &windows[len(windows)-1]
	last.ToRevision, last.To = end.ToRevision, end.To
	if made := f.Shipped.LastFull; made != nil && made.Revision <= last.ToRevision &&
		!slices.ContainsFunc(last.FullSnapshots, func(m facts.SnapshotMark) bool { return m.Revision >= made.Revision }) {
		last.FullSnapshots = append(slices.Clone(last.FullSnapshots), facts.SnapshotMark{Revision: made.Revision, At: made.Time})
	}
	return windows
}

// StoreContents describes the backups in the store, as of the last listing.
type StoreContents struct {
	facts.Backups           // what a listing shows
	At            time.Time // zero if there was none
	Cut           error     // why revisions after the window cannot be restored; nil if the next stored ones can

	history *archive.History
	stored  int64 // last revision that was stored before the listing
}

// window returns the restorable revisions; zero if there are none.
func (l *StoreContents) window() facts.Window {
	if l == nil || l.Window == nil {
		return facts.Window{}
	}
	return *l.Window
}

// addResult keeps the result of a restore test if it is the newest. Of two in the same second, a failure is kept.
func (l *StoreContents) addResult(result *archive.Result) {
	previous := l.LastVerification
	if previous != nil && (result.At.Before(previous.At) || result.At.Equal(previous.At) && !previous.Passed) {
		return
	}
	l.LastVerification = &facts.Verification{
		Revision: result.Revision, At: result.At, Passed: result.Outcome == archive.Verified, Reason: result.Why,
	}
	if result.Outcome != archive.Verified {
		return
	}
	reason := "restored in " + time.Duration(result.Seconds*float64(time.Second)).Round(time.Millisecond).String()
	if result.Hash != nil {
		reason += fmt.Sprintf("; the hash of its rows up to revision %d is etcd's own, %d", result.Hash.Revision, result.Hash.Hash)
	}
	l.LastVerification.Reason = reason
}

// newContents returns what users see of a history.
func newContents(history *archive.History) *StoreContents {
	listed := &StoreContents{history: history}
	for _, generation := range history.Generations {
		for _, full := range generation.Fulls {
			listed.StoredBytes += full.Size
		}
		for _, object := range generation.Objects {
			listed.StoredBytes += object.Size
		}
	}
	newest := history.Newest()
	if newest == nil {
		return listed
	}
	if windows := windows(history); len(newest.Chains) > 0 {
		listed.Windows, listed.Window = windows, &windows[len(windows)-1].Window
		listed.Cut = newest.Chains[len(newest.Chains)-1].PastEnd
	}
	for _, full := range newest.Fulls {
		if full.Err == nil {
			listed.LastFullSnapshot = &facts.FullSnapshot{Revision: full.Revision, At: full.Time, Bytes: full.Size, Reason: full.Reason}
		}
		if full.Result != nil {
			listed.addResult(full.Result)
		}
	}
	return listed
}

// maxWindows and maxMarks bound what is published of a long history. The newest entries are kept.
const (
	maxWindows = 16
	maxMarks   = 64 // per window
)

// testResults maps the outcomes of restore tests to those of the status document.
var testResults = map[archive.Outcome]string{archive.Verified: "passed", archive.Failed: "failed"}

// windows returns the restorable windows of all generations.
func windows(history *archive.History) (all []facts.GenerationWindow) {
	for _, generation := range history.Generations {
		for _, chain := range generation.Chains {
			window := facts.GenerationWindow{Generation: generation.Number, Window: facts.Window{
				FromRevision: chain.From, ToRevision: chain.To, From: chain.Begin, To: chain.End,
			}}
			for _, full := range generation.Fulls {
				if full.Err == nil && full.Revision >= chain.From && full.Revision <= chain.To {
					mark := facts.SnapshotMark{Revision: full.Revision, At: full.Time}
					if full.Result != nil {
						mark.RestoreTest = testResults[full.Result.Outcome]
					}
					window.FullSnapshots = append(window.FullSnapshots, mark)
				}
			}
			window.FullSnapshots = window.FullSnapshots[max(0, len(window.FullSnapshots)-maxMarks):]
			all = append(all, window)
		}
	}
	return all[max(0, len(all)-maxWindows):]
}
