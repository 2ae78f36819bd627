// Package metrics serves GET /metrics. It has its own registry, because etcd registers its metrics in the global
// registry and serves them itself.
//
// Most metrics are derived from the status document at each scrape. The package itself counts only events that are
// not in the document, such as calls to the sidecar, which package runtime reports. No label has an unbounded number
// of values.
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

// A Result is the outcome of an initialization.
type Result string

// Results of an initialization.
const (
	Successful Result = "successful"
	Failed     Result = "failed"
	Lost       Result = "lost" // the sidecar was restarted and lost the initialization
)

// Unrequested is the mode of an initialization that this process did not request.
const Unrequested = "unrequested"

// Metrics counts events and serves all metrics. Metrics is safe for concurrent use.
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

// New returns Metrics with all counters at zero.
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
			Help:    "Duration of calls to the backup-restore sidecar in seconds, by call (status, trigger, config) and outcome (ok, timeout, error).",
			Buckets: []float64{.005, .025, .1, .5, 1, 2.5, 5, 10, 15, 30, 60},
		}, []string{"call", "outcome"}),
		initializations: all.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "initializations_total",
			Help: "Number of completed initializations, by mode (sanity, full, unrequested) and verdict (successful, failed, lost).",
		}, []string{"mode", "verdict"}),
		recoveries: all.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "recoveries_total",
			Help: "Number of completed recoveries, by cause (the state of the volume, requested, unfinished) and outcome (restored, rejoined, refused).",
		}, []string{"cause", "outcome"}),
		lost:  gauge("recovery_lost_revisions", "Number of revisions known to be lost in the last restore since the process started."),
		start: gauge("etcd_start_duration_seconds", "Time from the start of etcd until it joined the cluster, in seconds."),
		stop:  gauge("etcd_stop_duration_seconds", "Time that etcd took to stop, in seconds."),
		drain: gauge("etcd_drain_duration_seconds", "Time that client streams took to end when etcd stopped, in seconds."),
	}
}

// Handler serves the counters and the metrics that are derived from the current document, which now returns. states
// lists all states of the lifecycle. Handler must be called only once.
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

// Recovered counts a completed recovery and records how many revisions are known to be lost.
func (m *Metrics) Recovered(cause, outcome string, lost int64) {
	m.recoveries.WithLabelValues(cause, outcome).Inc()
	m.lost.Set(float64(lost))
}

// EtcdStarted records how long it took until etcd was ready.
func (m *Metrics) EtcdStarted(took time.Duration) { m.start.Set(took.Seconds()) }

// EtcdStopped records how long etcd took to stop, and how much of that time was spent closing client streams.
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

// A collector derives metrics from the status document at each scrape, so all metrics are consistent. A metric whose
// value is unknown is omitted, because alerts would take a placeholder such as 0 at face value.
type collector struct {
	document func() status.Document
	states   []string
}

// Describe implements prometheus.Collector. Describe sends no descriptors, because the set of metrics depends on the
// document.
func (collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c collector) Collect(to chan<- prometheus.Metric) {
	d, m := c.document(), sink(to)
	m.addMember(d)
	m.addSteps(d, c.states)
	m.addBackups(d)
	m.addMaintenance(d.Maintenance)
	for _, lease := range d.Leases {
		m.addTime("lease_renewed_timestamp_seconds", "Unix time of the last renewal of the Kubernetes lease.", lease.Renewed, "kind", lease.Kind)
		m.addIf("lease_problem", "1 if the Kubernetes lease cannot be renewed.", lease.Problem != nil, "kind", lease.Kind)
	}
}

// A sink receives the metrics of one scrape.
type sink chan<- prometheus.Metric

// add adds a counter if the name ends in "_total", and a gauge otherwise. labels alternates between label names and
// values.
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

// addIf adds a gauge that is 1 if the condition is true and 0 otherwise.
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
	m.add("info", "Versions of etcd-wrapper, etcd and Go, and the cluster ID and owner if known; always 1.", 1,
		"version", d.Versions.Wrapper, "etcd_version", d.Versions.Etcd, "go_version", d.Versions.Go, "cluster_id", d.ClusterID, "cluster_name", owner)
	m.addIf("ready", "1 if the member is ready according to /readyz.", d.Ready)
	for _, class := range status.ExitClasses() {
		m.addIf("last_exit", "1 for the class of the previous exit, 0 for all others.", class == d.LastExit, "class", class)
	}
	for _, check := range d.Checks {
		m.addIf("readiness_check", "1 if the readiness check is ok or degraded, 0 if it has failed.", check.Status != status.HealthFailed, "check", check.Name)
		m.addIf("readiness_check_degraded", "1 if the readiness check is degraded.",
			check.Status == status.HealthDegraded, "check", check.Name)
	}
	voters, connected := int64(0), int64(0)
	for _, peer := range d.Peers {
		voters += count(!peer.Learner)
		connected += count(!peer.Learner && peer.Active)
	}
	if voters > 0 {
		m.add("voters", "Number of voting members in the cluster; absent while etcd is not running.", float64(voters))
		m.add("voters_connected", "Number of voting members that this member is connected to, including itself.", float64(connected))
	}
	for _, file := range d.Certificates {
		m.addTime("certificate_expiry_timestamp_seconds", "Unix time at which the first certificate in the file expires.", file.NotAfter, "certificate", file.Name)
	}
	if d.VolumeSize > 0 {
		m.add("volume_free_bytes", "Free space on the data volume in bytes.", float64(d.VolumeFree))
		m.add("volume_size_bytes", "Size of the data volume in bytes.", float64(d.VolumeSize))
	}
	if v := d.DataVersion; v != nil {
		m.addIf("data_version_readable", "1 if the wanted etcd version can read the data.", v.Readable, "wanted", v.Wanted)
	}
}

// addSteps adds metrics about the states and transitions of the lifecycle, and the state of a recovery. Transitions
// are counted by source, target and event, regardless of the guard.
func (m sink) addSteps(d status.Document, states []string) {
	seconds := map[string]float64{d.State: time.Since(d.Since).Seconds()} // time spent in the current state
	times := map[[3]string]int{}
	for _, edge := range d.TransitionCounts {
		seconds[string(edge.From)] += edge.Seconds
		times[[3]string{string(edge.From), string(edge.To), string(edge.Event)}] += edge.Count
	}
	for _, state := range states {
		m.addIf("state", "1 for the current lifecycle state, 0 for all others.", state == d.State, "state", state)
		m.add("state_seconds_total", "Time spent in each lifecycle state since the process started, in seconds.", seconds[state], "state", state)
	}
	for edge, count := range times {
		m.add("state_transitions_total", "Number of lifecycle state transitions since the process started.", float64(count),
			"from", edge[0], "to", edge[1], "event", edge[2])
	}
	if d.Recovery != nil {
		m.add("recovery_state", "1 for the current recovery state; absent without a recovery.", 1, "state", d.Recovery.State)
	}
}

func (m sink) addBackups(d status.Document) {
	b := d.Backup
	if d.Standalone {
		m.addIf("backup_configured", "1 if --backup-store is set; absent if another container makes the backups.", b != nil)
	}
	if b == nil {
		return
	}
	if b.Cluster != "" {
		m.add("cluster_info", "Cluster that the data belongs to, and its owner and generation in the backup store; always 1.", 1,
			"cluster", b.Cluster, "owner", b.Owner, "generation", strconv.Itoa(b.Generation))
	}
	if b.Role == facts.Writer && b.Revision > 0 { // a standby does not know the lag, and 0 would look up to date
		m.add("backup_lag_revisions", "Number of revisions that are not in the backup store yet.", float64(b.LagRevisions))
		m.add("backup_lag_seconds", "Age in seconds of the oldest revision that is not in the backup store yet; 0 if there is none.", b.LagSeconds)
	}
	m.addKnown("backup_revision", "Newest revision in the backup store.", b.Revision)
	m.addIf("backup_writer", "1 if this member writes the backups.", b.Role == facts.Writer)
	m.addIf("backup_problem", "1 if backups are failing or incomplete.", b.Problem != nil)
	if b.Problem != nil {
		m.addTime("backup_next_retry_timestamp_seconds", "Unix time of the next retry of a failed backup.", b.Problem.NextRetry)
	}
	if full := b.LastFullSnapshot; full != nil {
		m.addTime("backup_last_full_snapshot_timestamp_seconds", "Unix time of the newest full snapshot.", full.At)
		m.add("backup_last_full_snapshot_bytes", "Size of the newest full snapshot in the backup store in bytes.", float64(full.Bytes))
	}
	if test := b.LastVerification; test != nil {
		m.addTime("backup_last_verification_timestamp_seconds", "Unix time of the last restore test.", test.At)
		m.addIf("backup_last_verification_passed", "1 if the last restore test passed.", test.Passed)
	}
	if b.Window != nil {
		m.addTime("backup_window_start_timestamp_seconds", "Unix time of the earliest restore point.", b.Window.From)
	}
	m.addKnown("backup_stored_bytes", "Total size of the cluster's objects in the backup store in bytes, as of the last listing.", b.StoredBytes)
	m.add("backup_spool_bytes", "Size of the backups queued on the data volume in bytes.", float64(b.SpoolBytes))
	m.add("backup_spool_limit_bytes", "Maximum size of the backups queued on the data volume in bytes.", float64(b.SpoolLimit))
	m.add("backup_uploaded_bytes_total", "Number of bytes uploaded since the process started.", float64(b.UploadedBytes))
}

func (m sink) addMaintenance(u *state.Maintenance) {
	if u == nil {
		return
	}
	m.addIf("defragmentation_running", "1 while the database is being defragmented or clients are being redirected for a defragmentation.", u.Busy())
	m.addIf("defragmentation_waiting", "1 while a defragmentation is due but blocked.", u.Phase == "waiting")
	for outcome, times := range map[string]int{"done": u.Completed, "failed": u.Failed} {
		m.add("defragmentations_total", "Number of completed defragmentations, by outcome (done, failed).", float64(times), "outcome", outcome)
	}
	if last := u.LastDefragmentation; last != nil && last.Error == "" {
		m.add("defragmentation_last_duration_seconds", "Time for which the last defragmentation blocked the database, in seconds.", last.Seconds)
	}
	m.add("defragmentation_freed_bytes_total", "Number of bytes freed by defragmentation.", float64(u.FreedBytes))
	m.add("nospace_disarmed_total", "Number of times that this member's NOSPACE alarm was disarmed.", float64(u.NoSpaceDisarmed))
	m.add("database_readers", "Number of snapshots and backups that are reading the whole database.", float64(len(u.Readers)))
}
