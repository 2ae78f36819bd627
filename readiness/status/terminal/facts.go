package terminal

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"etcd-wrapper/backup/facts"
	"etcd-wrapper/member/state"
	"etcd-wrapper/readiness/status"
)

// fact is a line of the status. One without a name continues the fact before it.
type fact struct{ name, text string }

// factsOf returns all facts about a run.
func factsOf(d status.Document, now time.Time) []fact {
	return slices.Concat(
		since(d, now), lastError(d, now), validated(d), identity(d), recovered(d), maintenance(d.Maintenance, now),
		backup(d, now), renewed(d.Leases, now), expiring(d.Certificates, now), configured(d.ConfigWarnings), process(d, now),
	)
}

// since returns how long the state has lasted, and when it will change.
func since(d status.Document, now time.Time) []fact {
	began := d.PhaseSince
	if began.IsZero() { // an older wrapper
		began = d.Since
	}
	all := []fact{{"since", ago(began, now)}}
	if !d.ReadySince.IsZero() {
		all = append(all, fact{readyWord(d.Ready) + " since", ago(d.ReadySince, now)})
	}
	if d.Attempt > 1 {
		all = append(all, fact{"attempt", fmt.Sprint(d.Attempt)})
	}
	if !d.NextRetry.IsZero() {
		all = append(all, fact{"next step", "within " + Rounded(max(0, d.NextRetry.Sub(now))).String()})
	}
	return all
}

// validated returns the requested validation and the sidecar's answer.
func validated(d status.Document) (all []fact) {
	if v := d.Validation; v != nil {
		all = append(all, fact{"validation", v.Mode + ": " + v.Reason})
	}
	if d.SidecarStatus != "" {
		all = append(all, fact{"sidecar", d.SidecarStatus})
	}
	return all
}

func expiring(files []status.Certificate, now time.Time) (all []fact) {
	for _, file := range files {
		if file.ExpiresSoon(now) {
			all = append(all, fact{"certificate", fmt.Sprintf("%s %s: %s", file.Name, validity(file.NotAfter, now), file.Path)})
		}
	}
	return all
}

// configured returns the warnings about etcd's configuration.
func configured(oddities []string) (all []fact) {
	for _, oddity := range oddities {
		all = append(all, fact{"configuration", oddity})
	}
	return all
}

// process describes this process, and how the one before it ended.
func process(d status.Document, now time.Time) []fact {
	lastExit := d.LastExit
	if d.LastExitReason != "" {
		lastExit += ": " + d.LastExitReason
	}
	return []fact{
		{"process started", ago(d.Started, now)},
		{"last exit", lastExit},
		{"versions", fmt.Sprintf("wrapper %s, etcd %s, %s", d.Versions.Wrapper, d.Versions.Etcd, d.Versions.Go)},
	}
}

// lastError returns the last error with its duration and count. It does not repeat the reason of the state.
func lastError(d status.Document, now time.Time) []fact {
	e := d.LastError
	if e == nil {
		return nil
	}
	name, is := "error", e.Class
	if !e.Ended.IsZero() {
		name = "last error"
	}
	if !strings.Contains(d.Reason, e.Message) {
		is += ": " + e.Message
	}
	met := ago(e.At, now)
	if e.Count > 1 {
		met = fmt.Sprintf("%d times since %s", e.Count, ago(e.Since, now))
	}
	if !e.Ended.IsZero() {
		met += ", resolved " + ago(e.Ended, now)
	}
	return []fact{{name, is}, {"", met}}
}

func readyWord(ready bool) string {
	if ready {
		return "ready"
	}
	return "not ready"
}

// identity describes the member, its cluster, and its database.
func identity(d status.Document) (all []fact) {
	add := func(name, is string) {
		if is != "" {
			all = append(all, fact{name, is})
		}
	}
	add("member", both(d.Name, d.MemberID))
	add("cluster", d.ClusterID+map[bool]string{true: "; new: created by this run on an empty data directory"}[d.NewCluster])
	add("leader", leader(d))
	if d.DBSize > 0 {
		add("database", database(d.Member))
	}
	if d.VolumeSize > 0 {
		add("volume", fmt.Sprintf("%s of %s free", Size(d.VolumeFree), Size(d.VolumeSize)))
	}
	if v := d.DataVersion; v != nil {
		add("data version", fmt.Sprintf("%s wanted, %s: %s", v.Wanted, v.Phase, v.Reason))
	}
	for i, peer := range d.Peers {
		name := "peers"
		if i > 0 {
			name = ""
		}
		all = append(all, fact{name, peerLine(peer)})
	}
	return all
}

// both returns a name with its ID.
func both(name, id string) string {
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
			return fmt.Sprintf("%s, term %d", both(peer.Name, peer.ID), d.Term)
		}
	}
	return d.Leader
}

func peerLine(p state.Peer) string {
	state := "missing"
	if p.Active {
		state = "active "
	}
	line := fmt.Sprintf("%s  %s", state, both(cmp.Or(p.Name, strings.Join(p.URLs, ",")), p.ID))
	if p.Leader {
		line += ", leader"
	}
	if p.Learner {
		line += ", learner"
	}
	return line
}

func database(m state.Member) string {
	text := fmt.Sprintf("%s, %s in use", Size(m.DBSize), Size(m.DBInUse))
	if m.Quota > 0 {
		text += fmt.Sprintf(", %d%% of the quota of %s", 100*m.DBSize/m.Quota, Size(m.Quota))
	}
	return text
}

func validity(expires, now time.Time) string {
	if now.After(expires) {
		return "has expired, " + ago(expires, now)
	}
	return fmt.Sprintf("expires in %v, %s", Rounded(expires.Sub(now)), Moment(expires))
}

// ago returns a time in the local zone with its age.
func ago(at, now time.Time) string {
	return Moment(at) + ", " + Age(at, now)
}

// backup describes the backups: how far they are, the restore points and errors.
func backup(d status.Document, now time.Time) (all []fact) {
	b := d.Backup
	switch {
	case b == nil && d.Standalone:
		return []fact{{"backups", "none (no --backup-store)"}}
	case b == nil: // the sidecar makes them
		return nil
	}
	add := func(name, is string) { all = append(all, fact{name, is}) }
	add("backups", fmt.Sprintf("%s, this member is %s", b.Store, cmp.Or(map[facts.Role]string{facts.Writer: "the writer", facts.Standby: "on standby"}[b.Role], string(b.Role))))
	if b.Cluster != "" {
		add("backups of", clusterOf(b))
	}
	if problem := b.Problem; problem != nil {
		add("backups fail", fmt.Sprintf("since %s, %s%s", ago(problem.Since, now), often(problem.Count), nextRetry(problem.NextRetry, now)))
	}
	if b.Revision > 0 {
		add("in the store", inTheStore(b))
	}
	for _, span := range windows(b) {
		add("restore points", fmt.Sprintf("revisions %d to %d, %s to %s", span.FromRevision, span.ToRevision, Moment(span.From), Moment(span.To)))
	}
	if full := b.LastFullSnapshot; full != nil {
		add("last full snapshot", fmt.Sprintf("revision %d, %s, %s: %s", full.Revision, Size(full.Bytes), ago(full.At, now), full.Reason))
	}
	if run := b.RunningFullSnapshot; run != nil {
		add("running full snapshot", making(run))
	} else if !b.NextFullSnapshot.IsZero() {
		add("next full snapshot", Moment(b.NextFullSnapshot))
	}
	add("last restore test", verified(b.LastVerification, now))
	if b.SpoolBytes > 0 {
		add("spool", fmt.Sprintf("%s of %s queued on the volume", Size(b.SpoolBytes), Size(b.SpoolLimit)))
	}
	return all
}

// clusterOf names the cluster that etcd's data belong to.
func clusterOf(b *facts.Backups) string {
	text := b.Cluster
	if b.Owner != "" {
		text += " of " + b.Owner
	}
	if b.Generation > 0 {
		text += fmt.Sprintf(", generation %d", b.Generation)
	}
	return text
}

// windows returns the windows of restore points in all generations.
func windows(b *facts.Backups) (all []facts.Window) {
	for _, span := range b.Windows {
		all = append(all, span.Window)
	}
	if len(all) == 0 && b.Window != nil {
		all = append(all, *b.Window)
	}
	return all
}

func making(run *facts.SnapshotProgress) string {
	text := run.Step
	if run.TotalBytes > 0 {
		text += fmt.Sprintf(", %s of %s", Size(run.SentBytes), Size(run.TotalBytes))
	}
	if run.RemainingSeconds > 0 {
		text += fmt.Sprintf(", %v left", Rounded(time.Duration(run.RemainingSeconds*float64(time.Second))))
	}
	return text + ": " + run.Reason
}

func inTheStore(b *facts.Backups) string {
	stored := ""
	if b.StoredBytes > 0 {
		stored = "; " + Size(b.StoredBytes) + " in total"
	}
	if b.LagRevisions == 0 {
		return fmt.Sprintf("everything up to revision %d%s", b.Revision, stored)
	}
	behind := time.Duration(b.LagSeconds * float64(time.Second))
	return fmt.Sprintf("up to revision %d; %d behind, for %v%s", b.Revision, b.LagRevisions, Rounded(behind), stored)
}

func verified(proof *facts.Verification, now time.Time) string {
	switch {
	case proof == nil:
		return "never"
	case !proof.Passed:
		return fmt.Sprintf("FAILED at revision %d, %s: %s", proof.Revision, ago(proof.At, now), proof.Reason)
	default:
		return fmt.Sprintf("revision %d, %s: %s", proof.Revision, ago(proof.At, now), proof.Reason)
	}
}

// often formats a count of failures.
func often(times int) string {
	if times == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", times)
}

func nextRetry(at, now time.Time) string {
	if at.IsZero() {
		return ""
	}
	return ", next retry within " + Rounded(max(0, at.Sub(now))).String()
}

// recovered describes a recovery: its step, and what it restores.
func recovered(d status.Document) (all []fact) {
	r := d.Recovery
	if r == nil {
		return nil
	}
	is := cmp.Or(status.RecoveryDoes(r.State), r.State)
	if strings.Contains(d.Reason, r.Reason) {
		all = append(all, fact{"recovery", is})
	} else {
		all = append(all, fact{"recovery", is + ": " + r.Reason})
	}
	if r.Loss != "" {
		all = append(all, fact{"", r.Loss})
	}
	if r.RemainingSeconds > 0 {
		left := Rounded(time.Duration(r.RemainingSeconds * float64(time.Second)))
		all = append(all, fact{"", fmt.Sprintf("%.1f of %.1f MiB, %.1f MiB/s, %s left", mib(r.RestoredBytes), mib(r.TotalBytes), r.BytesPerSecond/(1<<20), left)})
	}
	return all
}

func mib(bytes int64) float64 { return float64(bytes) / (1 << 20) }

// maintenance describes defragmentations and the readers of the whole database.
func maintenance(u *state.Maintenance, now time.Time) (all []fact) {
	if u == nil {
		return nil
	}
	add := func(name, is string) { all = append(all, fact{name, is}) }
	if u.Phase != "idle" {
		add("defragmentation", u.Phase+progress(u)+": "+u.Reason)
	}
	if last := u.LastDefragmentation; last != nil {
		add("last defragmentation", Defragmented(last)+", "+ago(last.At, now))
	}
	for _, reader := range u.Readers {
		add("readers", reader.Name+" since "+ago(reader.Since, now))
	}
	return all
}

func progress(u *state.Maintenance) string {
	if u.Phase != "running" {
		return ""
	}
	return fmt.Sprintf(" (%.0f%%)", 100*u.Progress)
}

// Defragmented returns how a defragmentation ended.
func Defragmented(d *state.Defragmentation) string {
	if d.Error != "" {
		return "failed, by " + d.Origin + ": " + d.Error
	}
	took := Rounded(time.Duration(d.Seconds * float64(time.Second)))
	return fmt.Sprintf("by %s in %v: %s → %s", d.Origin, took, Size(d.BytesBefore), Size(d.BytesAfter))
}

// renewed describes the leases that the member renews.
func renewed(all []state.Lease, now time.Time) (facts []fact) {
	for i, lease := range all {
		name := "leases"
		if i > 0 {
			name = ""
		}
		facts = append(facts, fact{name, leaseLine(lease, now)})
		if problem := lease.Problem; problem != nil {
			facts = append(facts, fact{"lease fails", fmt.Sprintf("since %s, %s%s", ago(problem.Since, now), often(problem.Count), nextRetry(problem.NextRetry, now))})
		}
	}
	return facts
}

func leaseLine(lease state.Lease, now time.Time) string {
	if lease.Renewed.IsZero() {
		return lease.Name + ", not renewed yet"
	}
	return fmt.Sprintf("%s: %s, renewed %s", lease.Name, lease.Holder, ago(lease.Renewed, now))
}
