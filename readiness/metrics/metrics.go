// Package metrics serves GET /metrics. It has its own registry: etcd registers its metrics in the global one and
// serves them itself.
//
// Most metrics are made from the status document at each scrape. Only events that the document does not contain, such
// as calls to the sidecar, are counted here; package runtime reports them. No label has an unbounded number of
// values.
package metrics

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"etcd-wrapper/backup/facts"
	"etcd-wrapper/member/state"
	"etcd-wrapper/readiness/status"
)

const namespace = "etcd_wrapper"

// Result is the outcome of an initialization.
type Result string

// The results.
const (
	Successful Result = "successful"
	Failed     Result = "failed"
	Lost       Result = "lost" // the sidecar restarted and forgot the initialization
)

// Unrequested is the mode of an initialization that an earlier run requested.
const Unrequested = "unrequested"

// Metrics counts events and serves all metrics. It is safe for concurrent use.
type Metrics struct {
	registry        *prometheus.Registry
	requests        *prometheus.HistogramVec
	initializations *prometheus.CounterVec
	recoveries      *prometheus.CounterVec
	lost            prometheus.Gauge
	start           prometheus.Gauge
	stop            prometheus.Gauge
	drain           prometheus.Gauge
}

// New returns metrics with all counters at zero.
func New() *Metrics {
	registry := prometheus.NewRegistry()
	all := promauto.With(registry)
	gauge := func(name, help string) prometheus.Gauge {
		return all.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help})
	}
	return &Metrics{
		registry: registry,
		requests: all.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Name: "sidecar_request_duration_seconds",
			Help:    "How long calls to the backup-restore sidecar took, by call (status, trigger, config) and outcome (ok, timeout, error).",
			Buckets: []float64{.005, .025, .1, .5, 1, 2.5, 5, 10, 15, 30, 60},
		}, []string{"call", "outcome"}),
		initializations: all.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "initializations_total",
			Help: "Initializations that ended, by mode (sanity, full, unrequested) and verdict (successful, failed, lost).",
		}, []string{"mode", "verdict"}),
		recoveries: all.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "recoveries_total",
			Help: "Recoveries that ended, by cause (the state of the volume, requested, unfinished) and outcome (restored, rejoined, refused).",
		}, []string{"cause", "outcome"}),
		lost:  gauge("recovery_lost_revisions", "Revisions that the last restore since the process started is known to have lost."),
		start: gauge("etcd_start_duration_seconds", "How long etcd took from its start until it had joined its cluster."),
		stop:  gauge("etcd_stop_duration_seconds", "How long etcd took to close."),
		drain: gauge("etcd_drain_duration_seconds", "How long clients' streams took to end when etcd closed."),
	}
}

// Handler serves the counted metrics and those of the document that now returns. states lists all states of the
// lifecycle. Call it once.
func (m *Metrics) Handler(now func() status.Document, states []string) http.Handler {
	m.registry.MustRegister(collector{now, states})
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4})
}

// Request counts a completed call to the sidecar. call is status, trigger or config.
func (m *Metrics) Request(call string, took time.Duration, err error) {
	m.requests.WithLabelValues(call, outcome(err)).Observe(took.Seconds())
}

// Initialization counts a completed initialization. mode is sanity, full or Unrequested.
func (m *Metrics) Initialization(mode string, result Result) {
	m.initializations.WithLabelValues(mode, string(result)).Inc()
}

// Recovered counts a completed recovery, and the revisions that it is known to have lost.
func (m *Metrics) Recovered(cause, outcome string, lost int64) {
	m.recoveries.WithLabelValues(cause, outcome).Inc()
	m.lost.Set(float64(lost))
}

// EtcdStarted records how long etcd took to become ready.
func (m *Metrics) EtcdStarted(took time.Duration) { m.start.Set(took.Seconds()) }

// EtcdStopped records how long etcd took to close and, as part of that, to drain its clients' streams.
func (m *Metrics) EtcdStopped(took, drain time.Duration) {
	m.stop.Set(took.Seconds())
	m.drain.Set(drain.Seconds())
}

func outcome(err error) string {
	network, isNetwork := errors.AsType[net.Error](err)
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, context.DeadlineExceeded), isNetwork && network.Timeout():
		return "timeout"
	default:
		return "error"
	}
}

// A collector collects metrics from the status document at each scrape, so that the two cannot disagree. Unknown
// values are absent, so that no alert mistakes them for 0.
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

// A sink receives the metrics of one scrape.
type sink chan<- prometheus.Metric

// add adds a metric: a counter if its name ends in "_total", otherwise a gauge. labels alternates names and values.
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

// addIf adds 1 if a condition holds, and 0 otherwise.
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

// addSteps adds the states and steps of the state machines. Steps are counted by from, to and event, regardless of
// the guard.
func (m sink) addSteps(d status.Document, states []string) {
	seconds := map[string]float64{d.State: time.Since(d.Since).Seconds()} // time in the current state
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
