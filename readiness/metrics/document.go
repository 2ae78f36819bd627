package metrics

import (
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"etcd-wrapper/backup/facts"
	"etcd-wrapper/member/state"
	"etcd-wrapper/readiness/status"
)

// collector collects metrics from the status document at each scrape, so that the two cannot disagree. Unknown values are absent, so that no
// alert mistakes them for 0.
type collector struct {
	document func() status.Document
	states   []string
}

// Describe implements prometheus.Collector. It describes nothing, because the document decides which metrics there are.
func (collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c collector) Collect(to chan<- prometheus.Metric) {
	d, m := c.document(), sink(to)
	m.addMember(d)
	m.addSteps(d, c.states)
	m.addBackups(d)
	m.addMaintenance(d.Maintenance)
	for _, lease := range d.Leases {
		m.addTime("lease_renewed_timestamp_seconds", "When a Kubernetes lease was renewed last, in seconds since 1970.", lease.Renewed, "kind", lease.Kind)
		m.addIf("lease_problem", "1 while a Kubernetes lease cannot be renewed.", lease.Problem != nil, "kind", lease.Kind)
	}
}

// sink receives the metrics of one scrape.
type sink chan<- prometheus.Metric

// add adds a metric, a counter if its name ends in "_total". labels alternates names and values.
func (m sink) add(name, help string, value float64, labels ...string) {
	pairs, kind := prometheus.Labels{}, prometheus.GaugeValue
	for i := 0; i < len(labels); i += 2 {
		pairs[labels[i]] = labels[i+1]
	}
	if strings.HasSuffix(name, "_total") {
		kind = prometheus.CounterValue
	}
	m <- prometheus.MustNewConstMetric(prometheus.NewDesc(prometheus.BuildFQName(namespace, "", name), help, nil, pairs), kind, value)
}

// addIf adds 1 if a condition holds, or else 0.
func (m sink) addIf(name, help string, holds bool, labels ...string) {
	m.add(name, help, float64(count(holds)), labels...)
}

// addKnown adds a value unless it is 0.
func (m sink) addKnown(name, help string, value int64) {
	if value > 0 {
		m.add(name, help, float64(value))
	}
}

// addTime adds a time unless it is zero.
func (m sink) addTime(name, help string, at time.Time, labels ...string) {
	if !at.IsZero() {
		m.add(name, help, float64(at.UnixMilli())/1000, labels...)
	}
}

func count(holds bool) int64 {
	if holds {
		return 1
	}
	return 0
}

func (m sink) addMember(d status.Document) {
	owner := ""
	if d.Backup != nil {
		owner = d.Backup.Owner
	}
	m.add("info", "The versions of the programs in the process, and etcd's cluster with its owner once they are known; always 1.", 1,
		"version", d.Versions.Wrapper, "etcd_version", d.Versions.Etcd, "go_version", d.Versions.Go, "cluster_id", d.ClusterID, "cluster_name", owner)
	m.addIf("ready", "1 if the member is ready, as /readyz reports.", d.Ready)
	for _, class := range status.ExitClasses() {
		m.addIf("last_exit", "1 for the way in which the previous run ended.", class == d.LastExit, "class", class)
	}
	for _, check := range d.Checks {
		m.addIf("readiness_check", "1 if the check does not make the member unready.", check.Status != status.HealthFailed, "check", check.Name)
		m.addIf("readiness_check_degraded", "1 while the check needs attention but does not make the member unready.",
			check.Status == status.HealthDegraded, "check", check.Name)
	}
	voters, connected := int64(0), int64(0)
	for _, peer := range d.Peers {
		voters += count(!peer.Learner)
		connected += count(!peer.Learner && peer.Active)
	}
	if voters > 0 {
		m.add("voters", "Members of the cluster that have a vote, as this member knows it; absent while its etcd does not run.", float64(voters))
		m.add("voters_connected", "Voting members that this member is connected to, itself included.", float64(connected))
	}
	for _, file := range d.Certificates {
		m.addTime("certificate_expiry_timestamp_seconds", "When the first certificate in a file ends, in seconds since 1970.", file.NotAfter, "certificate", file.Name)
	}
	if d.VolumeSize > 0 {
		m.add("volume_free_bytes", "Free bytes of the volume with the database.", float64(d.VolumeFree))
		m.add("volume_size_bytes", "Size of the volume with the database.", float64(d.VolumeSize))
	}
	if v := d.DataVersion; v != nil {
		m.addIf("data_version_readable", "1 if an etcd of the wanted version can read the data.", v.Readable, "wanted", v.Wanted)
	}
}

// addSteps adds the states and steps of the machines. Steps are counted by from, to and event, for all guards.
func (m sink) addSteps(d status.Document, states []string) {
	seconds := map[string]float64{d.State: time.Since(d.Since).Seconds()} // the current visit
	times := map[[3]string]int{}
	for _, edge := range d.TransitionCounts {
		seconds[string(edge.From)] += edge.Seconds
		times[[3]string{string(edge.From), string(edge.To), string(edge.Event)}] += edge.Count
	}
	for _, state := range states {
		m.addIf("state", "1 for the state that the lifecycle is in, 0 for the others.", state == d.State, "state", state)
		m.add("state_seconds_total", "Time spent in each state since the process started.", seconds[state], "state", state)
	}
	for edge, count := range times {
		m.add("state_transitions_total", "Steps of the state machine since the process started.", float64(count),
			"from", edge[0], "to", edge[1], "event", edge[2])
	}
	if d.Recovery != nil {
		m.add("recovery_state", "1 for the state that the recovery of data is in; absent without a recovery.", 1, "state", d.Recovery.State)
	}
}

func (m sink) addBackups(d status.Document) {
	b := d.Backup
	if d.Standalone {
		m.addIf("backup_configured", "1 if the wrapper makes backups: there is a --backup-store; absent where another container makes them.", b != nil)
	}
	if b == nil {
		return
	}
	if b.Cluster != "" {
		m.add("cluster_info", "The cluster in the store that etcd's data belong to, its owner and generation; always 1.", 1,
			"cluster", b.Cluster, "owner", b.Owner, "generation", strconv.Itoa(b.Generation))
	}
	if b.Role == facts.Writer && b.Revision > 0 { // a standby would report 0, which looks like an up-to-date store
		m.add("backup_lag_revisions", "Revisions that are not in the store yet.", float64(b.LagRevisions))
		m.add("backup_lag_seconds", "Age of the oldest revision that is not in the store; 0 if there is none.", b.LagSeconds)
	}
	m.addKnown("backup_revision", "The newest revision in the store.", b.Revision)
	m.addIf("backup_writer", "1 for the member that makes the backups.", b.Role == facts.Writer)
	m.addIf("backup_problem", "1 while backups fail or are incomplete.", b.Problem != nil)
	if b.Problem != nil {
		m.addTime("backup_next_retry_timestamp_seconds", "When a failed backup is retried, in seconds since 1970.", b.Problem.NextRetry)
	}
	if full := b.LastFullSnapshot; full != nil {
		m.addTime("backup_last_full_snapshot_timestamp_seconds", "When the newest full snapshot was made, in seconds since 1970.", full.At)
		m.add("backup_last_full_snapshot_bytes", "Size of the newest full snapshot in the store.", float64(full.Bytes))
	}
	if test := b.LastVerification; test != nil {
		m.addTime("backup_last_verification_timestamp_seconds", "When a backup was last restored to test it, in seconds since 1970.", test.At)
		m.addIf("backup_last_verification_passed", "1 if the data of the last restore test equalled etcd's.", test.Passed)
	}
	if b.Window != nil {
		m.addTime("backup_window_start_timestamp_seconds", "The earliest restore point, in seconds since 1970.", b.Window.From)
	}
	m.addKnown("backup_stored_bytes", "Size of all of the cluster's objects in the store, as of the last listing.", b.StoredBytes)
	m.add("backup_spool_bytes", "Bytes queued on the volume for the store.", float64(b.SpoolBytes))
	m.add("backup_spool_limit_bytes", "Maximum number of bytes queued there.", float64(b.SpoolLimit))
	m.add("backup_uploaded_bytes_total", "Bytes that this process has uploaded.", float64(b.UploadedBytes))
}

func (m sink) addMaintenance(u *state.Maintenance) {
	if u == nil {
		return
	}
	m.addIf("defragmentation_running", "1 while the database is being defragmented, or clients are redirected for it.", u.Busy())
	m.addIf("defragmentation_waiting", "1 while a necessary defragmentation of the database is blocked.", u.Phase == "waiting")
	for outcome, times := range map[string]int{"done": u.Completed, "failed": u.Failed} {
		m.add("defragmentations_total", "Defragmentations that ended, by outcome (done, failed).", float64(times), "outcome", outcome)
	}
	if last := u.LastDefragmentation; last != nil && last.Error == "" {
		m.add("defragmentation_last_duration_seconds", "How long the last defragmentation blocked the database.", last.Seconds)
	}
	m.add("defragmentation_freed_bytes_total", "Bytes that defragmentations have freed.", float64(u.FreedBytes))
	m.add("nospace_disarmed_total", "How often this member's alarm NOSPACE was disarmed.", float64(u.NoSpaceDisarmed))
	m.add("database_readers", "Snapshots and backups that read the whole database now.", float64(len(u.Readers)))
}
