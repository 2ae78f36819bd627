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
	// logDelay is the minimum wait of etcd that is logged.
	logDelay = time.Second
	// firstReminder and lastReminder are the shortest and longest intervals between reminders of a persistent
	// problem. The interval doubles after each reminder.
	firstReminder = 30 * time.Second
	lastReminder  = 5 * time.Minute
)

// Watch observes the run until ctx is done. Watch logs changes of readiness and reminders of persistent problems, and
// updates the timeline. Watch calls lost when the termination message for a killed process changes, and calls
// happened for each event on the timeline. Neither callback may block.
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

	latest   string // termination message at the last call of lost
	health   string // last logged health
	warned   bool   // the reason why the member is not ready has been logged
	waits    string // what etcd is waiting for
	since    time.Time
	logged   bool      // etcd's wait has been logged
	degraded time.Time // time at which the member became degraded
	subject  time.Time // start of the condition that the reminders are about
	reminded time.Time
	pause    time.Duration // interval until the next reminder
}

func (w *watcher) check(now time.Time) {
	run := w.run.Snapshot()
	is := w.snapshot()
	headline := is.Headline
	w.noteReadiness(run, is, now)
	for _, h := range w.history.Record(is, now, w.runtime.Requests) {
		w.happened(h)
	}
	w.noteHealth(headline, now)
	w.noteProgress(run, now)
	w.logCondition(run, is, now)
	if now := string(run.State) + headline.Health + w.reason(run); now != w.latest {
		w.latest = now
		w.lost()
	}
}

func (w *watcher) noteReadiness(run *lifecycle.Snapshot, is status.Document, now time.Time) {
	reason := ""
	if !is.Ready {
		reason = notReadyReason(run, is)
	}
	changed := w.readiness.note(is.Ready, reason, run.State, is.ReadySince)
	switch {
	case is.Ready && changed:
		w.warned = false
		w.log.Info().Msg("ready")
	case !is.Ready && run.State == lifecycle.Serving && !w.warned && (changed || now.Sub(run.Since) >= logDelay):
		w.warned = true
		w.log.Warn().Msg("not ready: " + reason)
	}
}

// noteHealth logs when a ready member becomes degraded and when it recovers.
func (w *watcher) noteHealth(is status.Headline, now time.Time) {
	was := w.health
	if is.Health == was {
		return
	}
	w.health = is.Health
	switch {
	case is.Health == status.HealthDegraded:
		w.degraded = now
		w.log.Warn().Msg(is.Summary)
	case is.Health == status.HealthOK && was == status.HealthDegraded:
		w.log.Info().Msg(is.Summary)
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
func (w *watcher) logCondition(run *lifecycle.Snapshot, is status.Document, now time.Time) {
	subject, quiet := w.conditionSince(run, is)
	if subject != w.subject {
		w.subject, w.reminded, w.pause = subject, subject, firstReminder
	}
	if quiet || now.Sub(w.reminded) < w.pause {
		return
	}
	w.reminded, w.pause = now, min(2*w.pause, lastReminder)
	w.log.WithLevel(conditionLevel(run, is.Recovery)).Str("state", string(run.State)).Time("since", subject.UTC()).
		Stringer("lasts", now.Sub(subject).Round(time.Second)).Int("times", run.Attempt).Msg("still " + w.describeCondition(run, is))
}

// conditionSince returns the time at which the current problem started. quiet is true if there is none.
func (w *watcher) conditionSince(run *lifecycle.Snapshot, is status.Document) (since time.Time, quiet bool) {
	if is.Headline.Health == status.HealthDegraded {
		return w.degraded, false
	}
	if run.State == lifecycle.Serving {
		return is.ReadySince, is.Ready
	}
	return run.PhaseSince, false
}

// conditionLevel returns the warn level if something is wrong, and otherwise info. A slow start usually means that
// there is no quorum, and a slow recovery that a response is missing, but a slow validation is normal.
func conditionLevel(run *lifecycle.Snapshot, recovery *status.Recovery) zerolog.Level {
	waits := recovery != nil && (recovery.State == "AskPeers" || recovery.State == "AskStore")
	if isActive(run.Condition) || waits || run.State == lifecycle.StartEtcd || run.State == lifecycle.Serving {
		return zerolog.WarnLevel
	}
	return zerolog.InfoLevel
}

func (w *watcher) describeCondition(run *lifecycle.Snapshot, is status.Document) string {
	if is.Headline.Health == status.HealthDegraded {
		return is.Headline.Summary
	}
	if run.State == lifecycle.Serving {
		return "not ready: " + notReadyReason(run, is)
	}
	if isActive(run.Condition) && w.runtime.RecoveryProgress() == "" {
		return string(run.State) + ": " + run.Condition.Message // without the reason for the state, which changes with each attempt
	}
	return string(run.State) + ": " + w.reason(run)
}

func isActive(trouble lifecycle.Condition) bool { return trouble.Class != "" && trouble.Ended.IsZero() }
