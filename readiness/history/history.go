// Package history keeps a member's recent history in memory: time series of measurements (trends.go) and a timeline
// of events. The history covers a few hours and is lost when the process exits.
//
// Package report passes each status document to a History, and includes the History's trends and timeline in the
// document.
package history

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"etcd-wrapper/member/state"
	"etcd-wrapper/readiness/status"
)

// A History is the history of one process. Only one goroutine may call Record. Trends and Timeline are safe for
// concurrent use.
type History struct {
	fsyncs prometheus.Metric

	// The fields in this block are used only by Record.
	previous status.Document
	taken    reading   // counters at the last point
	due      time.Time // when the next point is due; zero until etcd has been started

	mu       sync.Mutex
	trends   *status.Trends
	timeline []status.TimelineEvent
}

// New returns an empty history. etcd is the registry that contains etcd's metrics. New gets etcd's histogram of WAL
// fsyncs by registering an identical one: Prometheus returns a registered metric only in the error of such an
// attempt.
func New(etcd prometheus.Registerer) *History {
	equal := prometheus.NewHistogram(fsyncs)
	if existing, ok := errors.AsType[prometheus.AlreadyRegisteredError](etcd.Register(equal)); ok {
		return &History{fsyncs: existing.ExistingCollector.(prometheus.Histogram)}
	}
	return &History{fsyncs: equal}
}

// Record compares a document with the previous one, adds new events to the timeline and returns them. If a point of
// the trends is due, Record adds it and calls requests for the total counts and durations of client requests.
func (h *History) Record(d status.Document, now time.Time, requests func() (writes, reads state.Requests)) []status.TimelineEvent {
	events := h.note(d, now)
	h.recordTrends(d, now, requests)
	h.previous = d
	return events
}

// Trends returns the time series, or nil before the first point. Callers must not modify the time series.
func (h *History) Trends() *status.Trends {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.trends
}

// Timeline returns the latest events of each kind, oldest first. Callers must not modify the events.
func (h *History) Timeline() []status.TimelineEvent {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.timeline
}

// maxPerKind is the maximum number of events of one kind on the timeline. It keeps a flapping condition from
// displacing events of other kinds.
const maxPerKind = 10

// note adds the events since the previous document to the timeline, and returns them.
func (h *History) note(d status.Document, now time.Time) []status.TimelineEvent {
	events := append(checkEvents(h.previous, d, now), changes(eventsOf(h.previous, now), eventsOf(d, now), now)...)
	if len(events) == 0 {
		return nil
	}
	all := append(slices.Clone(h.Timeline()), events...) // cloned because readers may still use the old slice
	slices.SortStableFunc(all, func(a, b status.TimelineEvent) int { return a.At.Compare(b.At) })
	kept := map[string]int{}
	for i := len(all) - 1; i >= 0; i-- {
		if kept[all[i].Kind]++; kept[all[i].Kind] > maxPerKind {
			all = slices.Delete(all, i, i+1)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.timeline = all
	return events
}

// An eventWithKey is an event with a key that identifies it across documents.
type eventWithKey struct {
	status.TimelineEvent
	key string
}

type eventList []eventWithKey

func (all *eventList) add(key any, at time.Time, kind, health, message string) {
	*all = append(*all, eventWithKey{status.TimelineEvent{At: at, Kind: kind, Health: health, Message: message}, fmt.Sprint(key)})
}

func (all eventList) has(e eventWithKey) bool {
	return slices.ContainsFunc(all, func(other eventWithKey) bool { return other.Kind == e.Kind && other.key == e.key })
}

// changes returns the events in after that are not in before, and a "resolved" event for each problem in before that
// is not in after.
func changes(before, after eventList, now time.Time) (events []status.TimelineEvent) {
	for _, e := range after {
		if !before.has(e) {
			events = append(events, e.TimelineEvent)
		}
	}
	for _, e := range before {
		if e.Kind == "problem" && !after.has(e) {
			events = append(events, status.TimelineEvent{At: now, Kind: e.Kind, Health: status.HealthOK, Message: e.key + ": resolved"})
		}
	}
	return events
}

// eventsOf returns an event for each current or past condition that a document describes.
func eventsOf(d status.Document, now time.Time) (all eventList) {
	all.addRun(d, now)
	all.addBackups(d)
	if m := d.Maintenance; m != nil && m.LastDefragmentation != nil {
		if last := m.LastDefragmentation; last.Error != "" {
			all.add(*last, last.At, "defragmentation", status.HealthDegraded, "defragmentation triggered by "+last.Origin+" failed: "+last.Error)
		} else {
			all.add(*last, last.At, "defragmentation", status.HealthOK, fmt.Sprintf("defragmentation triggered by %s took %.1f s", last.Origin, last.Seconds))
		}
	}
	switch r := d.Recovery; {
	case r == nil:
	case r.State == "Ready" && r.Loss != "":
		all.add(r.State, r.Since, "restore", status.HealthOK, r.Loss)
	case r.State == "Ready":
		all.add(r.State, r.Since, "recovery", status.HealthOK, r.Reason)
	case r.State == "Refused":
		all.add(r.State, r.Since, "recovery", status.HealthFailed, "refused: "+r.Reason)
	}
	all.addErrors(d)
	return all
}

// addRun adds the start of the process, with the exit of the previous one, and the current readiness and leader.
func (all *eventList) addRun(d status.Document, now time.Time) {
	if !d.Started.IsZero() {
		health, last := status.HealthOK, ""
		if slices.Contains([]string{status.ExitCrash, status.ExitFailed, status.ExitKilled}, d.LastExit) {
			health, last = status.HealthDegraded, "; previous exit: "+d.LastExit
			if d.LastExitReason != "" {
				last += ": " + d.LastExitReason
			}
		}
		all.add("process", d.Started, "start", health, "the process started"+last)
	}
	at := cmp.Or(d.ReadySince, now)
	if d.NewCluster { // may indicate that the volume was lost
		all.add("cluster", at, "start", status.HealthOK, "created a new cluster because the data directory was empty")
	}
	if d.Ready {
		all.add(true, at, "readiness", status.HealthOK, "ready")
	} else {
		all.add(false, at, "readiness", status.HealthFailed, d.Headline.Summary)
	}
	if d.Leader == "" {
		all.add("", now, "leader", status.HealthFailed, "the cluster has no leader")
		return
	}
	name := d.Leader
	for _, peer := range d.Peers {
		if peer.ID == d.Leader {
			name = cmp.Or(peer.Name, name)
		}
	}
	// The key contains the term, because the leader may win another election.
	all.add(fmt.Sprint(d.Leader, d.Term), now, "leader", status.HealthOK, fmt.Sprintf("%s is the leader in term %d", name, d.Term))
}

// addBackups adds the last full snapshot and the last restore test, unless they are older than this process. Their
// times are truncated to seconds in the store, so they are compared with the truncated start time of the process.
func (all *eventList) addBackups(d status.Document) {
	second := d.Started.Truncate(time.Second)
	if d.Backup == nil {
		return
	}
	if full := d.Backup.LastFullSnapshot; full != nil && !full.At.Before(second) {
		all.add(fmt.Sprint(full.Revision, full.At.Unix()), maxTime(d.Started, full.At), "full_snapshot", status.HealthOK,
			fmt.Sprintf("full snapshot at revision %d: %s", full.Revision, full.Reason))
	}
	if test := d.Backup.LastVerification; test != nil && !test.At.Before(second) {
		health, result := status.HealthOK, "passed"
		if !test.Passed {
			health, result = status.HealthDegraded, "FAILED: "+test.Reason
		}
		all.add(*test, maxTime(d.Started, test.At), "restore_test", health, fmt.Sprintf("restore test at revision %d %s", test.Revision, result))
	}
}

func maxTime(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// addErrors adds the current errors of the lifecycle, the backups and the leases. The key of an event does not contain
// the error message, because the message of a persistent error may change.
func (all *eventList) addErrors(d status.Document) {
	add := func(subject, health, message string, since time.Time) {
		all.add(subject, since, "problem", health, subject+": "+message)
	}
	if e := d.LastError; e != nil && e.Ended.IsZero() {
		add(e.Class, status.HealthFailed, e.Message, e.Since)
	}
	if d.Backup != nil && d.Backup.Problem != nil {
		add("backups", status.HealthDegraded, d.Backup.Problem.Message, d.Backup.Problem.Since)
	}
	for _, lease := range d.Leases {
		if lease.Problem != nil {
			add("lease "+lease.Name, status.HealthDegraded, lease.Problem.Message, lease.Problem.Since)
		}
	}
}

// checkEvents returns an event for each alarm or check that has become worse or returned to ok while the member is
// serving.
func checkEvents(before, after status.Document, now time.Time) (events []status.TimelineEvent) {
	if after.State != "Serving" || before.State != "Serving" || status.CommonReason(after.Checks) != "" {
		return nil
	}
	severities := map[string]int{}
	if status.CommonReason(before.Checks) == "" {
		for _, check := range before.Checks {
			severities[check.Name] = level(check.Status)
		}
	}
	for _, check := range after.Checks {
		kind, name, message := "problem", check.Name, "resolved"
		if alarm := map[string]string{"no_corrupt_alarm": "alarm CORRUPT", "space": "alarm NOSPACE"}[check.Name]; alarm != "" {
			kind, name = "alarm", alarm
		}
		worse := level(check.Status) - severities[check.Name]
		if worse > 0 {
			message = check.Reason
		}
		if worse > 0 || worse < 0 && check.Status == status.HealthOK {
			events = append(events, status.TimelineEvent{At: now, Kind: kind, Health: check.Status, Message: name + ": " + message})
		}
	}
	return events
}

// level returns the severity of a check's status. An unrecognized status is treated as ok.
func level(health string) int {
	return max(0, slices.Index([]string{status.HealthOK, status.HealthDegraded, status.HealthFailed}, health))
}
