package metrics

import (
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"etcd-wrapper/backup/facts"
	"etcd-wrapper/member/state"
	"etcd-wrapper/readiness/status"
)

// document collects metrics from the status document at each scrape, so that the two cannot disagree.
type document struct {
	now    func() status.Document
	states []string
	all    []*prometheus.Desc

	info, state, transitions, seconds, ready, check, degraded, voters, connected, lastExit, expiry, readable, configured, cluster, recovery, free, volume *prometheus.Desc

	backup      backup
	maintenance maintenance
	leases      leases
}

func newDocument(now func() status.Document, states []string) *document {
	d := &document{now: now, states: states}
	d.info = d.desc("info", "The versions of the programs in the process, and etcd's cluster with its owner once they are known; always 1.", "version", "etcd_version", "go_version", "cluster_id", "cluster_name")
	d.state = d.desc("state", "1 for the state that the lifecycle is in, 0 for the others.", "state")
	d.transitions = d.desc("state_transitions_total", "Steps of the state machine since the process started.", "from", "to", "event")
	d.seconds = d.desc("state_seconds_total", "Time spent in each state since the process started.", "state")
	d.ready = d.desc("ready", "1 if the member is ready, as /readyz reports.")
	d.check = d.desc("readiness_check", "1 if the check does not make the member unready.", "check")
	d.degraded = d.desc("readiness_check_degraded", "1 while the check needs attention but does not make the member unready.", "check")
	d.voters = d.desc("voters", "Members of the cluster that have a vote, as this member knows it; absent while its etcd does not run.")
	d.connected = d.desc("voters_connected", "Those of them that this member has a connection to, itself included.")
	d.lastExit = d.desc("last_exit", "1 for how the run before this one ended.", "class")
	d.expiry = d.desc("certificate_expiry_timestamp_seconds", "When the first certificate in a file ends, in seconds since 1970.", "certificate")
	d.readable = d.desc("data_version_readable", "1 if an etcd of the wanted version can read the data.", "wanted")
	d.configured = d.desc("backup_configured", "1 if the wrapper makes backups: there is a --backup-store; absent where another container makes them.")
	d.cluster = d.desc("cluster_info", "The cluster in the store that etcd's data belong to, its owner and generation; always 1.", "cluster", "owner", "generation")
	d.recovery = d.desc("recovery_state", "1 for the state that the recovery of data is in; absent without a recovery.", "state")
	d.free = d.desc("volume_free_bytes", "Free bytes of the volume with the database.")
	d.volume = d.desc("volume_size_bytes", "Size of the volume with the database.")
	d.backup, d.maintenance, d.leases = newBackup(d.desc), newMaintenance(d.desc), newLeases(d.desc)
	return d
}

// desc describes a metric of the document.
func (d *document) desc(name, help string, labels ...string) *prometheus.Desc {
	described := prometheus.NewDesc(prometheus.BuildFQName(namespace, "", name), help, labels, nil)
	d.all = append(d.all, described)
	return described
}

// describer is document.desc.
type describer func(name, help string, labels ...string) *prometheus.Desc

// Describe implements prometheus.Collector.
func (d *document) Describe(to chan<- *prometheus.Desc) {
	for _, each := range d.all {
		to <- each
	}
}

// Collect implements prometheus.Collector.
func (d *document) Collect(to chan<- prometheus.Metric) {
	is, now := d.now(), time.Now()
	gauge := func(of *prometheus.Desc, holds bool, labels ...string) {
		to <- prometheus.MustNewConstMetric(of, prometheus.GaugeValue, number(holds), labels...)
	}
	gauge(d.info, true, is.Versions.Wrapper, is.Versions.Etcd, is.Versions.Go, is.ClusterID, owner(is))
	d.collectVoters(is, to)
	gauge(d.ready, is.Ready)
	for _, class := range status.LastExits() {
		gauge(d.lastExit, class == is.LastExit, class)
	}
	for _, check := range is.Checks {
		gauge(d.check, check.Status != "failed", check.Name)
		gauge(d.degraded, check.Status == "degraded", check.Name)
	}
	for _, file := range is.Certificates {
		to <- prometheus.MustNewConstMetric(d.expiry, prometheus.GaugeValue, float64(file.NotAfter.Unix()), file.Name)
	}
	if is.VolumeSize > 0 {
		to <- prometheus.MustNewConstMetric(d.free, prometheus.GaugeValue, float64(is.VolumeFree))
		to <- prometheus.MustNewConstMetric(d.volume, prometheus.GaugeValue, float64(is.VolumeSize))
	}
	if v := is.DataVersion; v != nil {
		gauge(d.readable, v.Readable, v.Wanted)
	}
	if is.Standalone {
		gauge(d.configured, is.Backup != nil)
	}
	if is.Recovery != nil {
		gauge(d.recovery, true, is.Recovery.State)
	}
	if b := is.Backup; b != nil && b.Cluster != "" {
		gauge(d.cluster, true, b.Cluster, b.Owner, strconv.Itoa(b.Generation))
	}
	d.backup.collect(is.Backup, to)
	d.maintenance.collect(is.Maintenance, to)
	d.leases.collect(is.Leases, to)
	spent := spent(is, now)
	for _, state := range d.states {
		gauge(d.state, state == is.State, state)
		to <- prometheus.MustNewConstMetric(d.seconds, prometheus.CounterValue, spent[state], state)
	}
	for way, times := range steps(is) {
		to <- prometheus.MustNewConstMetric(d.transitions, prometheus.CounterValue, times, way[:]...)
	}
}

// collectVoters counts the voting members and those that this member is connected to.
func (d *document) collectVoters(is status.Document, to chan<- prometheus.Metric) {
	voters, connected := 0, 0
	for _, peer := range is.Peers {
		if !peer.Learner {
			voters++
			connected += int(number(peer.Active))
		}
	}
	if voters > 0 {
		to <- prometheus.MustNewConstMetric(d.voters, prometheus.GaugeValue, float64(voters))
		to <- prometheus.MustNewConstMetric(d.connected, prometheus.GaugeValue, float64(connected))
	}
}

func owner(is status.Document) string {
	if is.Backup == nil {
		return ""
	}
	return is.Backup.Owner
}

// steps counts transitions by from, to and event, for all guards.
func steps(is status.Document) map[[3]string]float64 {
	times := map[[3]string]float64{}
	for _, edge := range is.TransitionCounts {
		times[[3]string{edge.From, edge.To, edge.Event}] += float64(edge.Count)
	}
	return times
}

// spent returns the seconds in each state, including the current visit.
func spent(is status.Document, now time.Time) map[string]float64 {
	seconds := map[string]float64{is.State: now.Sub(is.Since).Seconds()}
	for _, edge := range is.TransitionCounts {
		seconds[edge.From] += edge.Seconds
	}
	return seconds
}

func number(holds bool) float64 {
	if holds {
		return 1
	}
	return 0
}

// backup collects the metrics of backups. Unknown values are absent, so that no alert mistakes them for 0.
type backup []backupMetric

// backupMetric is a metric with a function that returns its value, or false if the value is unknown.
type backupMetric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	is   func(*facts.Backups) (float64, bool)
}

func newBackup(desc describer) backup {
	return slices.Concat(desc.lagMetrics(), desc.storedMetrics(), backup{
		desc.backupGauge("spool_bytes", "Bytes queued on the volume for the store.", func(b *facts.Backups) (float64, bool) {
			return float64(b.SpoolBytes), true
		}),
		desc.backupGauge("spool_limit_bytes", "Bytes that may be queued there, max.", func(b *facts.Backups) (float64, bool) {
			return float64(b.SpoolLimit), true
		}),
		{desc("backup_uploaded_bytes_total", "Bytes that this process has uploaded."), prometheus.CounterValue, func(b *facts.Backups) (float64, bool) {
			return float64(b.UploadedBytes), true
		}},
	})
}

func (desc describer) backupGauge(name, help string, is func(*facts.Backups) (float64, bool)) backupMetric {
	return backupMetric{desc("backup_"+name, help), prometheus.GaugeValue, is}
}

// lagMetrics are the metrics of the lag and of problems.
func (desc describer) lagMetrics() backup {
	return backup{
		desc.backupGauge("lag_revisions", "Revisions that are not in the store yet.", func(b *facts.Backups) (float64, bool) {
			return float64(b.LagRevisions), lagKnown(b)
		}),
		desc.backupGauge("lag_seconds", "Age of the oldest revision that is not in the store; 0 if there is none.", func(b *facts.Backups) (float64, bool) {
			return b.LagSeconds, lagKnown(b)
		}),
		desc.backupGauge("revision", "The newest revision in the store.", func(b *facts.Backups) (float64, bool) {
			return float64(b.Revision), b.Revision > 0
		}),
		desc.backupGauge("writer", "1 for the member that makes the backups.", func(b *facts.Backups) (float64, bool) {
			return number(b.Role == facts.Writer), true
		}),
		desc.backupGauge("problem", "1 while backups fail or are incomplete.", func(b *facts.Backups) (float64, bool) {
			return number(b.Problem != nil), true
		}),
		desc.backupGauge("next_retry_timestamp_seconds", "When a failed backup is retried, in seconds since 1970.", func(b *facts.Backups) (float64, bool) {
			return ifKnown(b.Problem, func(p *facts.Problem) (float64, bool) { return at(p.NextRetry) })
		}),
	}
}

// lagKnown reports whether the lag is known: only the writer knows it. A standby would report 0, which looks like an up-to-date store.
func lagKnown(b *facts.Backups) bool { return b.Role == facts.Writer && b.Revision > 0 }

// storedMetrics are the metrics of the backups in the store.
func (desc describer) storedMetrics() backup {
	return backup{
		desc.backupGauge("last_full_snapshot_timestamp_seconds", "When the newest full snapshot was made, in seconds since 1970.", func(b *facts.Backups) (float64, bool) {
			return ifKnown(b.LastFullSnapshot, func(f *facts.FullSnapshot) (float64, bool) { return at(f.At) })
		}),
		desc.backupGauge("last_full_snapshot_bytes", "Size of the newest full snapshot in the store.", func(b *facts.Backups) (float64, bool) {
			return ifKnown(b.LastFullSnapshot, func(f *facts.FullSnapshot) (float64, bool) { return float64(f.Bytes), true })
		}),
		desc.backupGauge("last_verification_timestamp_seconds", "When a backup was last restored to test it, in seconds since 1970.", func(b *facts.Backups) (float64, bool) {
			return ifKnown(b.LastVerification, func(v *facts.Verification) (float64, bool) { return at(v.At) })
		}),
		desc.backupGauge("last_verification_passed", "1 if the last test restore gave back what etcd had.", func(b *facts.Backups) (float64, bool) {
			return number(b.LastVerification != nil && b.LastVerification.Passed), b.LastVerification != nil
		}),
		desc.backupGauge("window_start_timestamp_seconds", "The earliest restore point, in seconds since 1970.", func(b *facts.Backups) (float64, bool) {
			return ifKnown(b.Window, func(w *facts.Window) (float64, bool) { return at(w.From) })
		}),
		desc.backupGauge("stored_bytes", "Size of all of the cluster's objects in the store, as of the last listing.", func(b *facts.Backups) (float64, bool) {
			return float64(b.StoredBytes), b.StoredBytes > 0
		}),
	}
}

func ifKnown[T any](part *T, value func(*T) (float64, bool)) (float64, bool) {
	if part == nil {
		return 0, false
	}
	return value(part)
}

func at(t time.Time) (float64, bool) { return float64(t.UnixMilli()) / 1000, !t.IsZero() }

func (all backup) collect(b *facts.Backups, to chan<- prometheus.Metric) {
	if b == nil {
		return
	}
	for _, metric := range all {
		if is, known := metric.is(b); known {
			to <- prometheus.MustNewConstMetric(metric.desc, metric.kind, is)
		}
	}
}

// maintenance collects the metrics of defragmentations.
type maintenance struct{ busy, waiting, ended, seconds, freed, lifted, readers *prometheus.Desc }

func newMaintenance(desc describer) maintenance {
	return maintenance{
		busy:    desc("defragmentation_running", "1 while the database is being defragmented, or clients are kept away for it."),
		waiting: desc("defragmentation_waiting", "1 while the database should be defragmented and something is in the way."),
		ended:   desc("defragmentations_total", "Defragmentations that ended, by outcome (done, failed).", "outcome"),
		seconds: desc("defragmentation_last_duration_seconds", "How long the last defragmentation blocked the database."),
		freed:   desc("defragmentation_freed_bytes_total", "Bytes that defragmentations have freed."),
		lifted:  desc("nospace_disarmed_total", "How often this member's alarm NOSPACE was disarmed."),
		readers: desc("database_readers", "Snapshots and backups that read the whole database now."),
	}
}

func (u maintenance) collect(is *state.Maintenance, to chan<- prometheus.Metric) {
	if is == nil {
		return
	}
	metric := func(of *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(of, kind, value, labels...)
	}
	metric(u.busy, prometheus.GaugeValue, number(is.Busy()))
	metric(u.waiting, prometheus.GaugeValue, number(is.Phase == "waiting"))
	metric(u.ended, prometheus.CounterValue, float64(is.Completed), "done")
	metric(u.ended, prometheus.CounterValue, float64(is.Failed), "failed")
	metric(u.freed, prometheus.CounterValue, float64(is.FreedBytes))
	metric(u.lifted, prometheus.CounterValue, float64(is.NoSpaceDisarmed))
	metric(u.readers, prometheus.GaugeValue, float64(len(is.Readers)))
	if last := is.LastDefragmentation; last != nil && last.Error == "" {
		metric(u.seconds, prometheus.GaugeValue, last.Seconds)
	}
}

// leases collects the metrics of Kubernetes leases.
type leases struct{ renewed, trouble *prometheus.Desc }

func newLeases(desc describer) leases {
	return leases{
		renewed: desc("lease_renewed_timestamp_seconds", "When a Kubernetes lease was renewed last, in seconds since 1970.", "kind"),
		trouble: desc("lease_problem", "1 while a Kubernetes lease cannot be renewed.", "kind"),
	}
}

func (l leases) collect(all []state.Lease, to chan<- prometheus.Metric) {
	for _, lease := range all {
		to <- prometheus.MustNewConstMetric(l.trouble, prometheus.GaugeValue, number(lease.Problem != nil), lease.Kind)
		if !lease.Renewed.IsZero() {
			to <- prometheus.MustNewConstMetric(l.renewed, prometheus.GaugeValue, float64(lease.Renewed.Unix()), lease.Kind)
		}
	}
}
