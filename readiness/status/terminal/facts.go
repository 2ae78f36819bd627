package terminal

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"etcd-wrapper/backup/facts"
	"etcd-wrapper/readiness/status"
)

// fact is something to know about a run, with its name. One without a name continues the fact before.
type fact struct{ name, is string }

// factsOf are what there is to know about a run, at now.
func factsOf(d status.Document, now time.Time) []fact {
	return slices.Concat(
		since(d, now), trouble(d, now), validated(d), identity(d), recovered(d), maintenance(d.Maintenance, now),
		backup(d, now), renewed(d.Leases, now), expiring(d.Certificates, now), configured(d.ConfigWarnings), process(d, now),
	)
}

// since says how long the state has lasted, and when it changes.
func since(d status.Document, now time.Time) []fact {
	began := d.PhaseSince
	if began.IsZero() { // a wrapper of an older version
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

// validated says what was asked for, and what the sidecar said.
func validated(d status.Document) (all []fact) {
	if v := d.Validation; v != nil {
		all = append(all, fact{"validation", v.Mode + ": " + v.Reason})
	}
	if d.SidecarStatus != "" {
		all = append(all, fact{"sidecar said", d.SidecarStatus})
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

// configured is what is odd about etcd's configuration.
func configured(oddities []string) (all []fact) {
	for _, oddity := range oddities {
		all = append(all, fact{"configuration", oddity})
	}
	return all
}

// process is about this one, and how the one before it ended.
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

// trouble says since when it lasts and how often it was met, or that it is over. What the reason of the state says already
// is not repeated.
func trouble(d status.Document, now time.Time) []fact {
	e := d.LastError
	if e == nil {
		return nil
	}
	name, is := "trouble", e.Class
	if !e.Ended.IsZero() {
		name = "last trouble"
	}
	if !strings.Contains(d.Reason, e.Message) {
		is += ": " + e.Message
	}
	met := ago(e.At, now)
	if e.Count > 1 {
		met = fmt.Sprintf("%d times since %s", e.Count, ago(e.Since, now))
	}
	if !e.Ended.IsZero() {
		met += ", over since " + ago(e.Ended, now)
	}
	return []fact{{name, is}, {"", met}}
}

func readyWord(ready bool) string {
	if ready {
		return "ready"
	}
	return "not ready"
}

// identity is who the member is, in which cluster, and how large its database is.
func identity(d status.Document) (all []fact) {
	add := func(name, is string) {
		if is != "" {
			all = append(all, fact{name, is})
		}
	}
	add("member", both(d.Name, d.MemberID))
	add("cluster", d.ClusterID+map[bool]string{true: ", new: it began in this run, on an empty data directory"}[d.NewCluster])
	add("leader", leader(d))
	if d.DBSize > 0 {
		add("database", database(d.Member))
	}
	if d.VolumeSize > 0 {
		add("volume", fmt.Sprintf("%s of %s are free", Size(d.VolumeFree), Size(d.VolumeSize)))
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

// both puts an ID behind the name that people know, if there is one.
func both(name, id string) string {
	if name == "" || id == "" {
		return name + id
	}
	return name + " (" + id + ")"
}

func leader(d status.Document) string {
	if d.Leader == "" && d.ClusterID != "" {
		return fmt.Sprintf("none is known, term %d", d.Term)
	}
	for _, peer := range d.Peers {
		if peer.Leader {
			return fmt.Sprintf("%s, term %d", both(peer.Name, peer.ID), d.Term)
		}
	}
	return d.Leader
}

func peerLine(p status.Peer) string {
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

func database(m status.Member) string {
	text := fmt.Sprintf("%s, of it %s in use", Size(m.DBSize), Size(m.DBInUse))
	if m.Quota > 0 {
		text += fmt.Sprintf(", %d%% of its quota of %s", 100*m.DBSize/m.Quota, Size(m.Quota))
	}
	return text
}

func validity(expires, now time.Time) string {
	if now.After(expires) {
		return "has expired, " + ago(expires, now)
	}
	return fmt.Sprintf("expires in %v, %s", Rounded(expires.Sub(now)), Moment(expires))
}

// ago is a moment in the reader's zone, with its age.
func ago(at, now time.Time) string {
	return Moment(at) + ", " + Age(at, now)
}

// backup is how far the store is, what it can give back, and what is wrong with it.
func backup(d status.Document, now time.Time) (all []fact) {
	b := d.Backup
	switch {
	case b == nil && d.Standalone:
		return []fact{{"backups", "none (no --backup-store)"}}
	case b == nil: // they are the sidecar's
		return nil
	}
	add := func(name, is string) { all = append(all, fact{name, is}) }
	add("backups", fmt.Sprintf("%s, this member is %s", b.Store, cmp.Or(map[facts.Role]string{facts.Writer: "the writer", facts.Standby: "on standby"}[b.Role], string(b.Role))))
	if b.Cluster != "" {
		add("backups of", clusterOf(b))
	}
	if trouble := b.Problem; trouble != nil {
		add("backup trouble", trouble.Message)
		add("", fmt.Sprintf("since %s, %s%s", ago(trouble.Since, now), often(trouble.Count), nextTry(trouble.NextRetry, now)))
	}
	if b.Revision > 0 {
		add("in the store", inTheStore(b))
	}
	for _, span := range ranges(b) {
		add("can go back to", fmt.Sprintf("revisions %d to %d, %s to %s", span.FromRevision, span.ToRevision, Moment(span.From), Moment(span.To)))
	}
	if full := b.LastFullSnapshot; full != nil {
		add("last full", fmt.Sprintf("revision %d, %s, %s: %s", full.Revision, Size(full.Bytes), ago(full.At, now), full.Reason))
	}
	if run := b.RunningFullSnapshot; run != nil {
		add("full in the making", making(run))
	} else if !b.NextFullSnapshot.IsZero() {
		add("next full", Moment(b.NextFullSnapshot))
	}
	add("last verified", verified(b.LastVerification, now))
	if b.SpoolBytes > 0 {
		add("spool", fmt.Sprintf("%s of %s wait on the volume", Size(b.SpoolBytes), Size(b.SpoolLimit)))
	}
	return all
}

// clusterOf names the cluster that etcd's data are of.
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

// ranges are what can be gone back to: in all generations, as far as that is told.
func ranges(b *facts.Backups) (all []facts.Window) {
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
		stored = "; " + Size(b.StoredBytes) + " in all"
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

// recovered is what came back from the store, or comes, or why it does not.
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

// maintenance is how far a defragmentation is or what it waits for, how the last one ended, and who reads the whole database.
func maintenance(u *status.Maintenance, now time.Time) (all []fact) {
	if u == nil {
		return nil
	}
	add := func(name, is string) { all = append(all, fact{name, is}) }
	if u.Phase != "idle" {
		add("defragmentation", u.Phase+progress(u)+": "+u.Reason)
	}
	if last := u.LastDefragmentation; last != nil {
		add("last defragmented", Defragmented(last)+", "+ago(last.At, now))
	}
	for _, reader := range u.Readers {
		add("being read by", reader.Name+" since "+ago(reader.Since, now))
	}
	return all
}

func progress(u *status.Maintenance) string {
	if u.Phase != "running" {
		return ""
	}
	return fmt.Sprintf(" (%.0f%%)", 100*u.Progress)
}

// Defragmented is how a defragmentation ended, in a clause.
func Defragmented(d *status.Defragmentation) string {
	if d.Error != "" {
		return "not, by " + d.Origin + ": " + d.Error
	}
	took := Rounded(time.Duration(d.Seconds * float64(time.Second)))
	return fmt.Sprintf("by %s, in %v: %s are %s now", d.Origin, took, Size(d.BytesBefore), Size(d.BytesAfter))
}

// renewed are the leases that the member renews, and what keeps it from that.
func renewed(all []status.Lease, now time.Time) (facts []fact) {
	for i, lease := range all {
		name := "leases"
		if i > 0 {
			name = ""
		}
		facts = append(facts, fact{name, leaseLine(lease, now)})
		if trouble := lease.Problem; trouble != nil {
			facts = append(facts, fact{"lease trouble", trouble.Message},
				fact{"", fmt.Sprintf("since %s, %s%s", ago(trouble.Since, now), often(trouble.Count), nextTry(trouble.NextRetry, now))})
		}
	}
	return facts
}

func leaseLine(lease status.Lease, now time.Time) string {
	if lease.Renewed.IsZero() {
		return lease.Name + ", not renewed yet"
	}
	return fmt.Sprintf("%s says %s, renewed %s", lease.Name, lease.Holder, ago(lease.Renewed, now))
}
