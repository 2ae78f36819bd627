package report

import (
	"context"
	"time"

	"github.com/rs/zerolog"

	"etcd-wrapper/lifecycle"
	"etcd-wrapper/readiness/status"
)

const (
	// pollInterval and healthyInterval are the polling intervals for values that change without a notification, such
	// as readiness. Healthy members are polled less often, to save CPU time.
	pollInterval    = 250 * time.Millisecond
	healthyInterval = time.Second
	// logDelay is the delay before Watch logs a slow step of starting or stopping etcd, or that a member in state
	// Serving is not ready.
	logDelay = time.Second
	// firstReminder and lastReminder are the shortest and longest intervals between reminders of a persistent
	// problem. The interval doubles after each reminder.
	firstReminder = 30 * time.Second
	lastReminder  = 5 * time.Minute
)

// Watch observes the run until ctx is done. Watch logs readiness changes and reminders of persistent problems, and
// updates the timeline. Watch calls lost when the result of KilledMessage changes, and calls happened for each event
// on the timeline. Neither callback may block.
func (r *Report) Watch(ctx context.Context, log zerolog.Logger, lost func(), happened func(status.TimelineEvent)) {
	w := &watcher{Report: r, log: log, lost: lost, happened: happened, pause: firstReminder}
	for ctx.Err() == nil {
		w.check(time.Now())
		interval := pollInterval
		if w.health == status.HealthOK {
			interval = healthyInterval
		}
		select {
		case <-ctx.Done():
		case <-time.After(interval):
		}
	}
}

// A watcher holds the state of Watch.
type watcher struct {
	*Report
	log      zerolog.Logger
	lost     func()
	happened func(status.TimelineEvent)

	latest   string // state, health and reason when lost was last called
	health   string // last logged health
	warned   bool   // the reason why the member is not ready has been logged
	waits    string // what etcd is waiting for; "" if it is neither starting nor stopping
	since    time.Time
	logged   bool      // waits has been logged
	degraded time.Time // time at which the member became degraded
	subject  time.Time // start of the problem that the reminders are about
	reminded time.Time
	pause    time.Duration // interval until the next reminder
}

func (w *watcher) check(now time.Time) {
	run := w.run.Snapshot()
	document := w.snapshot()
	headline := document.Headline
	w.noteReadiness(run, document, now)
	for _, h := range w.history.Record(document, now, w.runtime.Requests) {
		w.happened(h)
	}
	w.noteHealth(headline, now)
	w.noteProgress(run, now)
	w.logCondition(run, document, now)
	if now := string(run.State) + headline.Health + w.reason(run); now != w.latest {
		w.latest = now
		w.lost()
	}
}

func (w *watcher) noteReadiness(run *lifecycle.Snapshot, document status.Document, now time.Time) {
	reason := ""
	if !document.Ready {
		reason = notReadyReason(run, document)
	}
	changed := w.readiness.note(document.Ready, reason, run.State, document.ReadySince)
	switch {
	case document.Ready && changed:
		w.warned = false
		w.log.Info().Msg("ready")
	case !document.Ready && run.State == lifecycle.Serving && !w.warned && (changed || now.Sub(run.Since) >= logDelay):
		w.warned = true
		w.log.Warn().Msg("not ready: " + reason)
	}
}

// noteHealth logs when a ready member becomes degraded and when it recovers.
func (w *watcher) noteHealth(headline status.Headline, now time.Time) {
	previous := w.health
	if headline.Health == previous {
		return
	}
	w.health = headline.Health
	switch {
	case headline.Health == status.HealthDegraded:
		w.degraded = now
		w.log.Warn().Msg(headline.Summary)
	case headline.Health == status.HealthOK && previous == status.HealthDegraded:
		w.log.Info().Msg(headline.Summary)
	}
}

// noteProgress logs what etcd is waiting for if starting or stopping it is slow.
func (w *watcher) noteProgress(run *lifecycle.Snapshot, now time.Time) {
	waits := ""
	if run.State == lifecycle.StartEtcd || run.State == lifecycle.Terminating {
		waits = w.runtime.Progress()
	}
	if waits != w.waits {
		w.waits, w.since, w.logged = waits, now, false
	}
	if waits == "" || w.logged || now.Sub(w.since) < logDelay {
		return
	}
	w.logged = true
	w.log.Info().Str("state", string(run.State)).Msg("etcd is " + waits)
}

// logCondition logs reminders of a persistent problem at increasing intervals.
func (w *watcher) logCondition(run *lifecycle.Snapshot, document status.Document, now time.Time) {
	subject, quiet := w.conditionSince(run, document)
	if subject != w.subject {
		w.subject, w.reminded, w.pause = subject, subject, firstReminder
	}
	if quiet || now.Sub(w.reminded) < w.pause {
		return
	}
	w.reminded, w.pause = now, min(2*w.pause, lastReminder)
	w.log.WithLevel(conditionLevel(run, document.Recovery)).Str("state", string(run.State)).Time("since", subject.UTC()).
		Stringer("lasts", now.Sub(subject).Round(time.Second)).Int("times", run.Attempt).Msg("still " + w.describeCondition(run, document))
}

// conditionSince returns the time at which the current problem started. quiet is true if there is none.
func (w *watcher) conditionSince(run *lifecycle.Snapshot, document status.Document) (since time.Time, quiet bool) {
	if document.Headline.Health == status.HealthDegraded {
		return w.degraded, false
	}
	if run.State == lifecycle.Serving {
		return document.ReadySince, document.Ready
	}
	return run.PhaseSince, false
}

// conditionLevel returns the warn level if a reminder is about a problem, and otherwise info. Slowly starting etcd
// usually means that there is no quorum, and a slow recovery that a peer or the store does not respond, but a slow
// validation is normal.
func conditionLevel(run *lifecycle.Snapshot, recovery *status.Recovery) zerolog.Level {
	waits := recovery != nil && (recovery.State == "AskPeers" || recovery.State == "AskStore")
	if isActive(run.Condition) || waits || run.State == lifecycle.StartEtcd || run.State == lifecycle.Serving {
		return zerolog.WarnLevel
	}
	return zerolog.InfoLevel
}

func (w *watcher) describeCondition(run *lifecycle.Snapshot, document status.Document) string {
	if document.Headline.Health == status.HealthDegraded {
		return document.Headline.Summary
	}
	if run.State == lifecycle.Serving {
		return "not ready: " + notReadyReason(run, document)
	}
	if isActive(run.Condition) && w.runtime.RecoveryProgress() == "" {
		return string(run.State) + ": " + run.Condition.Message // omit w.reason, which changes with each attempt
	}
	return string(run.State) + ": " + w.reason(run)
}

func isActive(c lifecycle.Condition) bool { return c.Class != "" && c.Ended.IsZero() }
