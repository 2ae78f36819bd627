// Package metrics answers GET /metrics. It has a registry of its own: etcd registers
// its metrics in the global one and serves them itself.
//
// What the lifecycle knows is read from the status document when Prometheus asks; only what passes by, such as calls to
// the sidecar, is counted here. The command reports those. No label's values can grow without bound.
package metrics

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"etcd-wrapper/readiness/status"
)

const namespace = "etcd_wrapper"

// Result is how an initialization ended.
type Result string

// The results.
const (
	Successful Result = "successful"
	Failed     Result = "failed"
	Lost       Result = "lost" // the sidecar has forgotten it
)

// Unrequested is the mode of an initialization that this run did not ask for.
const Unrequested = "unrequested"

// Metrics counts what passes by and serves everything. Its methods may be called from any goroutine.
type Metrics struct {
	requests        *prometheus.HistogramVec
	initializations *prometheus.CounterVec
	recoveries      *prometheus.CounterVec
	lost            prometheus.Gauge
	start           prometheus.Gauge
	stop            prometheus.Gauge
	drain           prometheus.Gauge
}

// New returns metrics with nothing counted yet.
func New() *Metrics {
	return &Metrics{
		requests: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Name: "sidecar_request_duration_seconds",
			Help:    "How long calls to the backup-restore sidecar took, by call (status, trigger, config) and outcome (ok, timeout, error).",
			Buckets: []float64{.005, .025, .1, .5, 1, 2.5, 5, 10, 15, 30, 60},
		}, []string{"call", "outcome"}),
		initializations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "initializations_total",
			Help: "Initializations that ended, by mode (sanity, full, unrequested) and verdict (successful, failed, lost).",
		}, []string{"mode", "verdict"}),
		recoveries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "recoveries_total",
			Help: "Recoveries that ended, by cause (the state of the volume, requested, unfinished) and outcome (restored, rejoined, refused).",
		}, []string{"cause", "outcome"}),
		lost:  gauge("recovery_lost_revisions", "How many revisions are known to be lost by the last restore since the process started."),
		start: gauge("etcd_start_duration_seconds", "How long etcd took from its start until it had joined its cluster."),
		stop:  gauge("etcd_stop_duration_seconds", "How long etcd took to close."),
		drain: gauge("etcd_drain_duration_seconds", "How long clients' endless streams took to end when etcd closed."),
	}
}

// collectors are all that was counted.
func (m *Metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.requests, m.initializations, m.recoveries, m.lost, m.start, m.stop, m.drain}
}

func gauge(name, help string) prometheus.Gauge {
	return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help})
}

// Handler serves what was counted and what is in the status document, which is asked for from memory at each scrape.
// states are the names of all states.
func (m *Metrics) Handler(now func() status.Document, states []string) http.Handler {
	return promhttp.HandlerFor(m.registry(now, states), promhttp.HandlerOpts{MaxRequestsInFlight: 4})
}

func (m *Metrics) registry(now func() status.Document, states []string) *prometheus.Registry {
	all := prometheus.NewRegistry()
	all.MustRegister(newDocument(now, states))
	all.MustRegister(m.collectors()...)
	return all
}

// Request counts a call to the sidecar that ended. call is one of status, trigger and config.
func (m *Metrics) Request(call string, took time.Duration, err error) {
	m.requests.WithLabelValues(call, outcome(err)).Observe(took.Seconds())
}

// Initialization counts an initialization that ended. mode is sanity, full or Unasked.
func (m *Metrics) Initialization(mode string, result Result) {
	m.initializations.WithLabelValues(mode, string(result)).Inc()
}

// Recovered counts a recovery that ended, with how many revisions it is known to have lost.
func (m *Metrics) Recovered(cause, outcome string, lost int64) {
	m.recoveries.WithLabelValues(cause, outcome).Inc()
	m.lost.Set(float64(lost))
}

// EtcdStarted records how long etcd took to become ready.
func (m *Metrics) EtcdStarted(took time.Duration) { m.start.Set(took.Seconds()) }

// EtcdStopped records how long etcd took to close, and of that its clients' streams to end.
func (m *Metrics) EtcdStopped(took, drain time.Duration) {
	m.stop.Set(took.Seconds())
	m.drain.Set(drain.Seconds())
}

func outcome(err error) string {
	var network net.Error
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &network) && network.Timeout():
		return "timeout"
	default:
		return "error"
	}
}
