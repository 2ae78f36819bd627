package report

import (
	"context"
	"time"

	"github.com/rs/zerolog"

	"etcd-wrapper/lifecycle"
	"etcd-wrapper/readiness/status"
)

const (
	// pollInterval is the pause between polls of values that change without notice: readiness, and what etcd waits for.
	pollInterval = 250 * time.Millisecond
	// logDelay is the time that etcd must wait for one thing before that is logged.
	logDelay = time.Second
	// firstReminder and lastReminder bound the pauses between reminders of a lasting problem; each pause is twice the
	// previous one.
	firstReminder = 30 * time.Second
	lastReminder  = 5 * time.Minute
)

// Watch observes a run: it logs reminders of lasting conditions and changes of readiness, keeps the
// history, calls lost whenever something else would be true if the process were killed now, and happened for all that the timeline notes.
// Neither may wait. It returns when ctx is done.
func (r *Report) Watch(ctx context.Context, log zerolog.Logger, lost func(), happened func(status.TimelineEvent)) {
	w := &watcher{Report: r, log: log, lost: lost, happened: happened, pause: firstReminder}
	clock := time.NewTicker(pollInterval)
	defer clock.Stop()
	for ctx.Err() == nil {
		w.check(time.Now())
		select {
		case <-ctx.Done():
		case <-clock.C:
		}
	}
}

// watcher is the state of a Watch.
type watcher struct {
	*Report
	log      zerolog.Logger
	lost     func()
	happened func(status.TimelineEvent)

	latest   string // what was true when lost was called last
	health   string // in which the log knows the member
	warned   bool   // the log has heard why the member is not ready
	waits    string // what etcd waits for
	since    time.Time
	logged   bool      // the log has heard of that
	degraded time.Time // since when the member is degraded
	subject  time.Time // the start of the condition of the reminder
	reminded time.Time
	pause    time.Duration // until the next reminder
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

// noteHealth logs what is wrong with a member that is ready, and that nothing is any more.
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

// noteProgress logs what etcd's start or close waits for, once that takes time.
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
	w.log.Info().Str("state", string(run.State)).Msg("etcd " + waits)
}

// logCondition repeats a lasting condition, less and less often.
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

// conditionSince returns the time since which a condition lasts; quiet reports that there is none.
func (w *watcher) conditionSince(run *lifecycle.Snapshot, is status.Document) (since time.Time, quiet bool) {
	if is.Headline.Health == status.HealthDegraded {
		return w.degraded, false
	}
	if run.State == lifecycle.Serving {
		return is.ReadySince, is.Ready
	}
	return run.PhaseSince, false
}

// conditionLevel returns warn where something is wrong. A long start usually lacks a quorum, and a long recovery gets no answer; a
// validation may be slow.
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
		return string(run.State) + ": " + run.Condition.Message // an attempt that is under way is not what lasts
	}
	return string(run.State) + ": " + w.reason(run)
}

func isActive(trouble lifecycle.Condition) bool { return trouble.Class != "" && trouble.Ended.IsZero() }
