package history

import (
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"etcd-wrapper/member/state"
	"etcd-wrapper/readiness/status"
)

const (
	// capacity is the maximum number of points in a series. When a series is full, adjacent points are merged in
	// pairs, which doubles the interval. Once the interval has reached its maximum, the oldest point is dropped
	// instead. A series covers up to 160 minutes.
	capacity = 120
	shortest = 5 * time.Second // initial interval between points
	longest  = 16 * shortest   // maximum interval between points
)

// fsyncs describes etcd's histogram of WAL fsyncs. The name and the help must be those of etcd's histogram.
var fsyncs = prometheus.HistogramOpts{
	Namespace: "etcd", Subsystem: "disk", Name: "wal_fsync_duration_seconds",
	Help: "The latency distributions of fsync called by WAL.",
}

// A reading contains the values of counters at one point in time.
type reading struct {
	at            time.Time
	writes, reads state.Requests
	fsyncs        *dto.Histogram
	revision      int64
}

// recordTrends adds a point to each series if one is due.
func (h *History) recordTrends(d status.Document, now time.Time, requests func() (writes, reads state.Requests)) {
	if h.due.IsZero() && d.DBSize == 0 || now.Before(h.due) {
		return
	}
	taken := h.read(d, now, requests)
	defer func() { h.taken = taken }()
	if h.due.IsZero() { // the first reading yields no point, because a point is the difference between two readings
		h.due = now.Add(shortest)
		return
	}
	trends := status.Trends{Interval: shortest.Seconds()}
	if last := h.Trends(); last != nil {
		trends = *last
	}
	trends.Until = now
	points := h.points(&trends, taken, d)
	for _, next := range points {
		*next.series = append(*next.series, float32(next.point)) // safe, because readers do not access elements beyond the length of their own slices
	}
	if len(trends.Write) == capacity {
		shorten(&trends, points)
	}
	h.due = now.Add(time.Duration(trends.Interval * float64(time.Second)))
	h.mu.Lock()
	defer h.mu.Unlock()
	h.trends = &trends
}

// A sample is the next point of a series.
type sample struct {
	series *status.Points
	point  float64
}

// points returns the next point of each series.
func (h *History) points(trends *status.Trends, now reading, d status.Document) []sample {
	missing := math.NaN()
	size, inUse, behind, revisions := missing, missing, missing, missing
	if d.DBSize > 0 {
		size, inUse = float64(d.DBSize), float64(d.DBInUse)
		revisions = float64(max(0, now.revision-h.taken.revision)) / now.at.Sub(h.taken.at).Seconds()
	}
	if d.Backup != nil {
		behind = d.Backup.LagSeconds
	}
	return []sample{
		{&trends.Write, average(h.taken.writes, now.writes)},
		{&trends.Read, average(h.taken.reads, now.reads)},
		{&trends.Fsync, p99(h.taken.fsyncs, now.fsyncs)},
		{&trends.DBSize, size},
		{&trends.DBInUse, inUse},
		{&trends.BackupLag, behind},
		{&trends.Revisions, revisions},
	}
}

// shorten makes room for new points in each series: it merges adjacent points if the interval may still be doubled,
// and drops the oldest point otherwise.
func shorten(trends *status.Trends, all []sample) {
	shortened := func(p status.Points) status.Points { return p[1:] }
	if trends.Interval < longest.Seconds() {
		trends.Interval *= 2
		shortened = downsample
	}
	for _, each := range all {
		*each.series = shortened(*each.series)
	}
}

// downsample replaces each pair of points with its mean. downsample ignores missing points.
func downsample(p status.Points) status.Points {
	half := make(status.Points, len(p)/2)
	for i := range half {
		a, b := p[2*i], p[2*i+1]
		switch {
		case math.IsNaN(float64(a)):
			half[i] = b
		case math.IsNaN(float64(b)):
			half[i] = a
		default:
			half[i] = (a + b) / 2
		}
	}
	return half
}

func (h *History) read(d status.Document, now time.Time, requests func() (writes, reads state.Requests)) reading {
	writes, reads := requests()
	var fsyncs dto.Metric
	_ = h.fsyncs.Write(&fsyncs) // without etcd's metrics, points of this series are missing
	return reading{at: now, writes: writes, reads: reads, fsyncs: fsyncs.GetHistogram(), revision: d.Revision}
}

// average returns the mean duration of the requests between two readings, or NaN if there were no requests.
func average(from, to state.Requests) float64 {
	if to.Count <= from.Count {
		return math.NaN()
	}
	return (to.Took - from.Took).Seconds() / float64(to.Count-from.Count)
}

// p99 returns the 99th percentile of the observations between two readings, calculated as by Prometheus's
// histogram_quantile, or NaN if there were none.
func p99(from, to *dto.Histogram) float64 {
	counted := map[float64]uint64{}
	for _, bucket := range from.GetBucket() {
		counted[bucket.GetUpperBound()] = bucket.GetCumulativeCount()
	}
	rank := 0.99 * float64(to.GetSampleCount()-from.GetSampleCount())
	if to.GetSampleCount() <= from.GetSampleCount() {
		return math.NaN()
	}
	lower, below := 0.0, 0.0
	for _, bucket := range to.GetBucket() {
		upper := bucket.GetUpperBound()
		count := float64(bucket.GetCumulativeCount() - counted[upper])
		if count >= rank && !math.IsInf(upper, 1) {
			return lower + (upper-lower)*(rank-below)/(count-below)
		}
		if !math.IsInf(upper, 1) {
			lower, below = upper, count
		}
	}
	return lower
}
