package backup

import (
	"fmt"
	"slices"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/facts"
)

// Published returns the current state as the status document shows it.
func (b *Backups) Published() *facts.Backups { return published(b.Facts()) }

func published(known Facts) *facts.Backups {
	shipped, kept := known.Shipped, known.Kept
	document := &facts.Backups{
		Store: known.Store, Cluster: shipped.Cluster, Owner: shipped.Owner, Generation: shipped.Generation, Role: shipped.Role, Revision: shipped.Stored, LagRevisions: shipped.Behind, LagSeconds: shipped.BehindFor.Seconds(),
		NextFullSnapshot: shipped.NextFull, StoredBytes: kept.Bytes, UploadedBytes: shipped.Uploaded, SpoolBytes: shipped.SpoolBytes, SpoolLimit: shipped.SpoolLimit,
		RunningFullSnapshot: shipped.FullRunning, Problem: problem(known),
	}
	if kept.To > 0 {
		document.Window = window(known)
		document.Windows = spansUpTo(*document.Window, known)
	}
	document.LastFullSnapshot, document.LastVerification = lastFull(known), lastVerified(known)
	return document
}

// window returns the restorable revisions: those of the last listing, extended to what this writer has stored since.
func window(known Facts) *facts.Window {
	kept := known.Kept
	listed := &facts.Window{FromRevision: kept.From, ToRevision: kept.To, From: kept.Begin, To: kept.End}
	if kept.Cut == nil && known.Shipped.Stored >= kept.To { // otherwise another member writes, or this one has not read the store yet
		listed.ToRevision, listed.To = known.Shipped.Stored, time.Now().Add(-known.Shipped.BehindFor).Truncate(time.Second)
	}
	return listed
}

// spansUpTo returns the windows of the last listing. The last one ends with the window and includes the full snapshot
// made since.
func spansUpTo(end facts.Window, known Facts) []facts.GenerationWindow {
	spans := slices.Clone(known.Kept.Spans) // the listing is shared
	if len(spans) == 0 {
		return nil
	}
	last := &spans[len(spans)-1]
	last.ToRevision, last.To = end.ToRevision, end.To
	if made := known.Shipped.LastFull; made != nil && made.Revision <= last.ToRevision && (len(last.FullSnapshots) == 0 || made.Revision > last.FullSnapshots[len(last.FullSnapshots)-1].Revision) {
		last.FullSnapshots = append(slices.Clone(last.FullSnapshots), facts.SnapshotMark{Revision: made.Revision, At: made.Time})
	}
	return spans
}

// lastFull returns the newer of the listed full snapshot and the one made by this process.
func lastFull(known Facts) *facts.FullSnapshot {
	listed, made := known.Kept.LastFull, known.Shipped.LastFull
	switch {
	case made != nil && (listed == nil || made.Time.After(listed.Time)):
		return &facts.FullSnapshot{Revision: made.Revision, At: made.Time, Bytes: made.Data.Bytes, Reason: made.Reason}
	case listed != nil:
		return &facts.FullSnapshot{Revision: listed.Revision, At: listed.Time, Bytes: listed.Size, Reason: listed.Reason}
	default:
		return nil
	}
}

func lastVerified(known Facts) *facts.Verification {
	result := known.Kept.Result
	if result == nil {
		return nil
	}
	proof := &facts.Verification{Revision: result.Revision, At: result.At, Passed: result.Outcome == archive.Verified, Reason: result.Why}
	if proof.Passed {
		proof.Reason = "restored in " + time.Duration(result.Seconds*float64(time.Second)).Round(100*time.Millisecond).String()
		if result.Hash != nil {
			proof.Reason += fmt.Sprintf("; the hash of its rows up to revision %d is etcd's own, %d", result.Hash.Revision, result.Hash.Hash)
		}
	}
	return proof
}

// problem returns what prevents backups, their tests or deletions.
func problem(known Facts) *facts.Problem {
	unable := known.Unable
	if unable == nil {
		if known.Shipped.Trouble != nil {
			return known.Shipped.Trouble
		}
		unable = known.Undone
	}
	if unable == nil {
		return nil
	}
	return &facts.Problem{Since: unable.Since, Count: unable.Times, Message: unable.Text, NextRetry: unable.NextTry}
}
