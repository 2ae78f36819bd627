package terminal

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"etcd-wrapper/backup/facts"
	"etcd-wrapper/member/state"
	"etcd-wrapper/readiness/status"
)

// A line is a named line of the status. A line without a name continues the previous one.
type line struct{ name, text string }

// lines collects the lines of a status.
type lines struct {
	now time.Time
	all []line
}

// add adds a line unless its text is empty.
func (l *lines) add(name, text string) {
	if text != "" {
		l.all = append(l.all, line{name, text})
	}
}

func (l *lines) addFormat(name, format string, parts ...any) {
	l.add(name, fmt.Sprintf(format, parts...))
}

// addList adds a line for each string. Only the first line is named.
func (l *lines) addList(name string, texts []string) {
	for _, text := range texts {
		l.add(name, text)
		name = ""
	}
}

// statusLines returns all lines for a document.
func statusLines(d status.Document, now time.Time) []line {
	l := &lines{now: now}
	l.addState(d)
	l.addLastError(d)
	if v := d.Validation; v != nil {
		l.add("validation", v.Mode+": "+v.Reason)
	}
	l.add("sidecar", d.SidecarStatus)
	l.addMember(d)
	l.addRecovery(d)
	l.addMaintenance(d.Maintenance)
	l.addBackups(d)
	l.addLeases(d.Leases)
	for _, file := range d.Certificates {
		if file.IsExpiring(now) {
			l.addFormat("certificate", "%s %s: %s", file.Name, l.formatExpiry(file.NotAfter), file.Path)
		}
	}
	for _, warning := range d.ConfigWarnings {
		l.add("configuration", warning)
	}
	l.add("process started", l.timeWithAge(d.Started))
	l.add("last exit", join(d.LastExit, ": ", d.LastExitReason))
	l.addFormat("versions", "wrapper %s, etcd %s, %s", d.Versions.Wrapper, d.Versions.Etcd, d.Versions.Go)
	return l.all
}

// join returns two strings joined by a separator, or the other string if one is empty.
func join(a, separator, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + separator + b
}

// timeWithAge formats a time together with its age.
func (l *lines) timeWithAge(at time.Time) string { return FormatTime(at) + ", " + FormatAge(at, l.now) }

// addState adds when the state was entered, the readiness and the next step.
func (l *lines) addState(d status.Document) {
	l.add("since", l.timeWithAge(cmp.Or(d.PhaseSince, d.Since))) // older wrappers do not send PhaseSince
	if !d.ReadySince.IsZero() {
		l.add(readyWord(d.Ready)+" since", l.timeWithAge(d.ReadySince))
	}
	if d.Attempt > 1 {
		l.add("attempt", fmt.Sprint(d.Attempt))
	}
	if !d.NextRetry.IsZero() {
		l.add("next step", l.timeUntil(d.NextRetry))
	}
}

func (l *lines) timeUntil(at time.Time) string {
	return "within " + Round(max(0, at.Sub(l.now))).String()
}

func readyWord(ready bool) string {
	if ready {
		return "ready"
	}
	return "not ready"
}

// addLastError adds the last error, unless the reason for the state already contains its message.
func (l *lines) addLastError(d status.Document) {
	e := d.LastError
	if e == nil {
		return
	}
	name, text, occurred := "error", e.Class, l.timeWithAge(e.At)
	if !strings.Contains(d.Reason, e.Message) {
		text += ": " + e.Message
	}
	if e.Count > 1 {
		occurred = fmt.Sprintf("%d times since %s", e.Count, l.timeWithAge(e.Since))
	}
	if !e.Ended.IsZero() {
		name = "last error"
		occurred += ", resolved " + l.timeWithAge(e.Ended)
	}
	l.addList(name, []string{text, occurred})
}

// addMember adds lines about the member, the cluster and the database.
func (l *lines) addMember(d status.Document) {
	l.add("member", nameAndID(d.Name, d.MemberID))
	l.add("cluster", d.ClusterID+map[bool]string{true: "; created by this run in an empty data directory"}[d.NewCluster])
	l.add("leader", leader(d))
	if d.DBSize > 0 {
		text := fmt.Sprintf("%s, %s in use", Size(d.DBSize), Size(d.DBInUse))
		if d.Quota > 0 {
			text += fmt.Sprintf(", %d%% of the quota of %s", 100*d.DBSize/d.Quota, Size(d.Quota))
		}
		l.add("database", text)
	}
	if d.VolumeSize > 0 {
		l.addFormat("volume", "%s of %s free", Size(d.VolumeFree), Size(d.VolumeSize))
	}
	if v := d.DataVersion; v != nil {
		l.addFormat("data version", "%s wanted, %s: %s", v.Wanted, v.Phase, v.Reason)
	}
	var peers []string
	for _, peer := range d.Peers {
		text := map[bool]string{true: "active ", false: "missing"}[peer.Active] + "  " + nameAndID(cmp.Or(peer.Name, strings.Join(peer.URLs, ",")), peer.ID)
		if peer.Leader {
			text += ", leader"
		}
		if peer.Learner {
			text += ", learner"
		}
		peers = append(peers, text)
	}
	l.addList("peers", peers)
}

func nameAndID(name, id string) string {
	if name == "" || id == "" {
		return name + id
	}
	return name + " (" + id + ")"
}

func leader(d status.Document) string {
	if d.Leader == "" && d.ClusterID != "" {
		return fmt.Sprintf("none, term %d", d.Term)
	}
	for _, peer := range d.Peers {
		if peer.Leader {
			return fmt.Sprintf("%s, term %d", nameAndID(peer.Name, peer.ID), d.Term)
		}
	}
	return d.Leader
}

func (l *lines) formatExpiry(expires time.Time) string {
	if l.now.After(expires) {
		return "has expired, " + l.timeWithAge(expires)
	}
	return fmt.Sprintf("expires in %v, %s", Round(expires.Sub(l.now)), FormatTime(expires))
}

// addBackups adds lines about the backups, restore points and errors.
func (l *lines) addBackups(d status.Document) {
	b := d.Backup
	switch {
	case b == nil && d.Standalone:
		l.add("backups", "none (no --backup-store)")
		return
	case b == nil: // the backups are made by a sidecar
		return
	}
	role := map[facts.Role]string{facts.Writer: "the writer", facts.Standby: "on standby"}[b.Role]
	l.addFormat("backups", "%s, this member is %s", b.Store, cmp.Or(role, string(b.Role)))
	if b.Cluster != "" {
		text := join(b.Cluster, " of ", b.Owner)
		if b.Generation > 0 {
			text += fmt.Sprintf(", generation %d", b.Generation)
		}
		l.add("backups of", text)
	}
	if problem := b.Problem; problem != nil {
		l.add("backups fail", l.retryStatus(problem.Since, problem.Count, problem.NextRetry))
	}
	l.add("in the store", stored(b))
	windows := b.Windows
	if len(windows) == 0 && b.Window != nil {
		windows = []facts.GenerationWindow{{Window: *b.Window}}
	}
	for _, w := range windows {
		l.addFormat("restore points", "revisions %d to %d, %s to %s", w.FromRevision, w.ToRevision, FormatTime(w.From), FormatTime(w.To))
	}
	if full := b.LastFullSnapshot; full != nil {
		l.addFormat("last full snapshot", "revision %d, %s, %s: %s", full.Revision, Size(full.Bytes), l.timeWithAge(full.At), full.Reason)
	}
	if run := b.RunningFullSnapshot; run != nil {
		text := run.Step
		if run.TotalBytes > 0 {
			text += fmt.Sprintf(", %s of %s", Size(run.SentBytes), Size(run.TotalBytes))
		}
		l.add("running full snapshot", text+remaining(run.RemainingSeconds)+": "+run.Reason)
	} else if !b.NextFullSnapshot.IsZero() {
		l.add("next full snapshot", FormatTime(b.NextFullSnapshot))
	}
	test := "never"
	if last := b.LastVerification; last != nil {
		test = fmt.Sprintf("revision %d, %s: %s", last.Revision, l.timeWithAge(last.At), last.Reason)
		if !last.Passed {
			test = "FAILED at " + test
		}
	}
	l.add("last restore test", test)
	if b.SpoolBytes > 0 {
		l.addFormat("spool", "%s of %s queued on the volume", Size(b.SpoolBytes), Size(b.SpoolLimit))
	}
}

// remaining returns the estimated remaining time as a suffix, or "" if it is unknown.
func remaining(seconds float64) string {
	if seconds == 0 {
		return ""
	}
	return ", " + duration(seconds).String() + " left"
}

// duration converts seconds to a rounded duration.
func duration(seconds float64) time.Duration {
	return Round(time.Duration(seconds * float64(time.Second)))
}

// stored describes which revisions are in the store, or returns "" if that is unknown.
func stored(b *facts.Backups) string {
	if b.Revision == 0 {
		return ""
	}
	text := fmt.Sprintf("all revisions up to %d", b.Revision)
	if b.LagRevisions > 0 {
		text = fmt.Sprintf("revisions up to %d; %d behind for %v", b.Revision, b.LagRevisions, duration(b.LagSeconds))
	}
	if b.StoredBytes > 0 {
		text += "; " + Size(b.StoredBytes) + " in total"
	}
	return text
}

// retryStatus describes how many times an operation has failed and when it will be retried.
func (l *lines) retryStatus(since time.Time, count int, nextRetry time.Time) string {
	text := fmt.Sprintf("since %s, %d times", l.timeWithAge(since), count)
	if count == 1 {
		text = fmt.Sprintf("since %s, once", l.timeWithAge(since))
	}
	if !nextRetry.IsZero() {
		text += ", next retry " + l.timeUntil(nextRetry)
	}
	return text
}

// addRecovery adds the state and the progress of a recovery.
func (l *lines) addRecovery(d status.Document) {
	r := d.Recovery
	if r == nil {
		return
	}
	texts := []string{cmp.Or(status.DescribeRecovery(r.State), r.State), r.Loss}
	if r.State == "Ready" && r.Loss != "" {
		texts = texts[1:]
	} else if !strings.Contains(d.Reason, r.Reason) {
		texts[0] += ": " + r.Reason
	}
	if r.RemainingSeconds > 0 {
		texts = append(texts, fmt.Sprintf("%s of %s, %s/s%s", Size(r.RestoredBytes), Size(r.TotalBytes), Size(int64(r.BytesPerSecond)), remaining(r.RemainingSeconds)))
	}
	l.addList("recovery", texts)
}

// addMaintenance adds lines about defragmentations and about the readers of the whole database.
func (l *lines) addMaintenance(u *state.Maintenance) {
	if u == nil {
		return
	}
	switch u.Phase {
	case "idle":
	case "running":
		l.addFormat("defragmentation", "running (%.0f%%): %s", 100*u.Progress, u.Reason)
	default:
		l.add("defragmentation", u.Phase+": "+u.Reason)
	}
	if last := u.LastDefragmentation; last != nil {
		l.add("last defragmentation", DefragmentationResult(last)+", "+l.timeWithAge(last.At))
	}
	for _, reader := range u.Readers {
		l.add("readers", reader.Name+" since "+l.timeWithAge(reader.Since))
	}
}

// DefragmentationResult describes the result of a defragmentation.
func DefragmentationResult(d *state.Defragmentation) string {
	if d.Error != "" {
		return "failed, by " + d.Origin + ": " + d.Error
	}
	return fmt.Sprintf("by %s in %v: %s → %s", d.Origin, duration(d.Seconds), Size(d.BytesBefore), Size(d.BytesAfter))
}

// addLeases adds the leases that the member renews.
func (l *lines) addLeases(all []state.Lease) {
	name := "leases"
	for _, lease := range all {
		text := lease.Name + ", not renewed yet"
		if !lease.Renewed.IsZero() {
			text = fmt.Sprintf("%s: %s, renewed %s", lease.Name, lease.Holder, l.timeWithAge(lease.Renewed))
		}
		l.add(name, text)
		if problem := lease.Problem; problem != nil {
			l.add("lease fails", l.retryStatus(problem.Since, problem.Count, problem.NextRetry))
		}
		name = ""
	}
}
