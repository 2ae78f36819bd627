package terminal

import (
	"fmt"
	"time"

	"etcd-wrapper/readiness/status"
)

// backup is how far the store is, what it can give back, and what is wrong with it.
func backup(b *status.Backup, now time.Time) (all []fact) {
	if b == nil {
		return nil
	}
	add := func(name, is string) { all = append(all, fact{name, is}) }
	add("backups", fmt.Sprintf("%s, this member %s", b.Store, b.Role))
	if trouble := b.Trouble; trouble != nil {
		add("backup trouble", trouble.Message)
		add("", fmt.Sprintf("since %s, %s%s", ago(trouble.Since, now), often(trouble.Times), nextTry(trouble.NextTry, now)))
	}
	if b.Revision > 0 {
		add("in the store", inTheStore(b))
	}
	if w := b.Window; w != nil {
		add("can go back to", fmt.Sprintf("revisions %d to %d, %s to %s", w.FromRevision, w.ToRevision, moment(w.From), moment(w.To)))
	}
	if full := b.LastFull; full != nil {
		add("last full", fmt.Sprintf("revision %d, %s, %s: %s", full.Revision, size(full.Bytes), ago(full.At, now), full.Reason))
	}
	if run := b.FullRunning; run != nil {
		add("full in the making", making(run))
	} else if !b.NextFull.IsZero() {
		add("next full", moment(b.NextFull))
	}
	add("last verified", verified(b.LastVerified, now))
	if b.SpoolBytes > 0 {
		add("spool", fmt.Sprintf("%s of %s wait on the volume", size(b.SpoolBytes), size(b.SpoolLimit)))
	}
	return all
}

func making(run *status.BackupRun) string {
	text := run.Doing
	if run.Of > 0 {
		text += fmt.Sprintf(", %s of %s", size(run.Sent), size(run.Of))
	}
	if run.LeftSeconds > 0 {
		text += fmt.Sprintf(", %v left", Rounded(time.Duration(run.LeftSeconds*float64(time.Second))))
	}
	return text + ": " + run.Reason
}

func inTheStore(b *status.Backup) string {
	stored := ""
	if b.StoredBytes > 0 {
		stored = "; " + size(b.StoredBytes) + " in all"
	}
	if b.BehindRevisions == 0 {
		return fmt.Sprintf("everything up to revision %d%s", b.Revision, stored)
	}
	behind := time.Duration(b.BehindSeconds * float64(time.Second))
	return fmt.Sprintf("up to revision %d; %d behind, for %v%s", b.Revision, b.BehindRevisions, Rounded(behind), stored)
}

func verified(proof *status.BackupProof, now time.Time) string {
	switch {
	case proof == nil:
		return "never"
	case !proof.Passed:
		return fmt.Sprintf("FAILED at revision %d, %s: %s", proof.Revision, ago(proof.At, now), proof.Reason)
	default:
		return fmt.Sprintf("revision %d, %s: %s", proof.Revision, ago(proof.At, now), proof.Reason)
	}
}

// often is how many times something went wrong in a row.
func often(times int) string {
	if times == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", times)
}

func nextTry(at, now time.Time) string {
	if at.IsZero() {
		return ""
	}
	return ", next try within " + Rounded(max(0, at.Sub(now))).String()
}
