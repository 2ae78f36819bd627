package backup

import (
	"context"
	"time"

	"etcd-wrapper/backup/archive"
)

// Kept is what lies in the store, as of the last listing.
type Kept struct {
	At       time.Time         // of the listing; zero if there was none
	Bytes    int64             // of all objects of this cluster
	From, To int64             // the revisions that can be gone back to without a hole; 0 if there are none
	Begin    time.Time         // when From was the present
	End      time.Time         // when To was
	Cut      error             // why what the store has behind To cannot be gone back to; nil if what is stored next can
	LastFull *archive.KeptFull // the newest that is believed
	Verdict  *archive.Result   // the newest, on a full or of a drill
}

// list looks at what is kept, and when the last drill was.
func (c *chores) list(ctx context.Context) error {
	stored := c.shipper.Facts().Stored
	history, err := c.backups.archive.History(ctx) // by names alone a segment that is lost would not be missed
	if err != nil {
		return err
	}
	kept := summary(history)
	if newest := history.Newest(); newest != nil {
		drills, err := c.backups.archive.RestoreTests(ctx, newest.Number, time.Now().Add(-daily))
		if err != nil {
			return err
		}
		for _, drill := range drills {
			kept.judge(&drill)
			if drill.At.Before(kept.At) { // otherwise a clock was wrong
				c.due["drill"] = later(c.due["drill"], drill.At.Add(daily))
			}
		}
	}
	if kept.Cut != nil && kept.To < stored {
		c.suspect, c.due["drill"] = true, time.Time{}
	}
	c.history = history
	c.backups.kept.Store(&kept)
	return nil
}

// judge notes a verdict if it is the newest. Of two within the same second, a failure is the one to tell.
func (k *Kept) judge(verdict *archive.Result) {
	is := k.Verdict
	if is == nil || verdict.At.After(is.At) || verdict.At.Equal(is.At) && is.Outcome == archive.Verified {
		k.Verdict = verdict
	}
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// summary is what people are told of a history.
func summary(history *archive.History) Kept {
	kept := Kept{At: time.Now()}
	for _, generation := range history.Generations {
		for _, full := range generation.Fulls {
			kept.Bytes += full.Size
		}
		for _, object := range generation.Objects {
			kept.Bytes += object.Size
		}
	}
	newest := history.Newest()
	if newest == nil {
		return kept
	}
	if count := len(newest.Chains); count > 0 {
		chain := newest.Chains[count-1]
		kept.From, kept.To, kept.Begin, kept.End, kept.Cut = chain.From, chain.To, chain.Begin, chain.End, chain.PastEnd
	}
	for i := range newest.Fulls {
		full := &newest.Fulls[i]
		if full.Err == nil {
			kept.LastFull = full
		}
		if full.Result != nil {
			kept.judge(full.Result)
		}
	}
	return kept
}
