// Package history keeps in memory how a member did in the last hours: a few series of numbers (trends.go), and what happened that
// people care for (happened.go). Nothing of it outlives the process; Prometheus is for that.
//
// The watcher of package report owns a History and has it look at each document. The status document, the page and the terminal
// show what it keeps.
package history

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"etcd-wrapper/readiness/status"
)

// Requests add up since etcd's start.
type Requests struct {
	Count int64
	Took  time.Duration // all of them together
}

// History is of one run. One goroutine calls Look; Trends and Happened may be called from any.
type History struct {
	etcd prometheus.Gatherer

	// The owner's.
	before status.Document
	taken  reading
	due    time.Time // when the next point is taken; zero until etcd has run

	mu       sync.Mutex
	trends   *status.Trends
	happened []status.TimelineEvent
}

// New returns a history in which nothing has happened. etcd is the registry of etcd's own metrics.
func New(etcd prometheus.Gatherer) *History { return &History{etcd: etcd} }

// Look takes in what is true at now, and returns what has happened since the last look. requests are called when a point is taken, and
// say what clients have asked for.
func (h *History) Look(is status.Document, now time.Time, requests func() (writes, reads Requests)) []status.TimelineEvent {
	found := h.note(is, now)
	h.measure(is, now, requests)
	h.before = is
	return found
}

// Trends are the series as they are now; nil before there are any. They never change.
func (h *History) Trends() *status.Trends {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.trends
}

// Happened are the latest of each kind, the oldest first. They never change.
func (h *History) Happened() []status.TimelineEvent {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.happened
}
