// Package history keeps the last hours of a member in memory: series of measurements (trends.go) and a timeline of notable events
// (timeline.go). It ends with the process; Prometheus keeps more.
//
// The watcher of package report owns a History and passes it each document. The status document publishes the trends and the timeline.
package history

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"etcd-wrapper/member/state"
	"etcd-wrapper/readiness/status"
)

// History is the history of one run. One goroutine calls Record; Trends and Timeline are safe for concurrent use.
type History struct {
	etcd prometheus.Gatherer

	// Used by Record only.
	previous status.Document
	taken    reading
	due      time.Time // when the next point is taken; zero until etcd has run

	mu       sync.Mutex
	trends   *status.Trends
	timeline []status.TimelineEvent
}

// New returns an empty history. etcd is the registry of etcd's metrics.
func New(etcd prometheus.Gatherer) *History { return &History{etcd: etcd} }

// Record compares a document with the previous one and returns the new events. It calls requests when a measurement is due.
func (h *History) Record(d status.Document, now time.Time, requests func() (writes, reads state.Requests)) []status.TimelineEvent {
	events := h.note(d, now)
	h.recordTrends(d, now, requests)
	h.previous = d
	return events
}

// Trends returns the series, or nil before the first measurement. Callers must not change them.
func (h *History) Trends() *status.Trends {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.trends
}

// Timeline returns the latest events of each kind, the oldest first. Callers must not change them.
func (h *History) Timeline() []status.TimelineEvent {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.timeline
}
