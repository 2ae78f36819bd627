// Package metrics serves GET /metrics. It has its own registry: etcd registers its metrics in the global one and serves them itself.
//
// Most metrics are made from the status document at each scrape. Only events that the document does not have, such as calls to the
// sidecar, are counted here; package runtime reports them. No label has an unbounded number of values.
package metrics

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"etcd-wrapper/readiness/status"
)

const namespace = "etcd_wrapper"

// Result is the outcome of an initialization.
type Result string

// The results.
const (
	Successful Result = "successful"
	Failed     Result = "failed"
	Lost       Result = "lost" // the sidecar restarted and forgot it
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

// New returns metrics in which nothing is counted yet.
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

// Handler serves the counted metrics and those of the document that now returns. states lists all states of the lifecycle. Call it once.
func (m *Metrics) Handler(now func() status.Document, states []string) http.Handler {
	m.registry.MustRegister(collector{now, states})
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4})
}

// Request counts a call to the sidecar that ended. call is one of status, trigger and config.
func (m *Metrics) Request(call string, took time.Duration, err error) {
	m.requests.WithLabelValues(call, outcome(err)).Observe(took.Seconds())
}

// Initialization counts an initialization that ended. mode is sanity, full or Unrequested.
func (m *Metrics) Initialization(mode string, result Result) {
	m.initializations.WithLabelValues(mode, string(result)).Inc()
}

// Recovered counts a recovery that ended, and the revisions that it is known to have lost.
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
