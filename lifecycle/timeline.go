package lifecycle

import (
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/statemachine"
)

// maxHistory is the maximum length of the history.
const maxHistory = 64

// Transition is a transition in the history. Count is the number of times that the transition was taken in the
// current phase.
type Transition = statemachine.Transition

// EdgeCount counts how often a transition was taken since the process started.
type EdgeCount = statemachine.TransitionCount

// Validation describes the requested validation of the data directory.
type Validation struct {
	Mode bootstrap.Mode
	Why  string // reason for the mode
}

// Snapshot is an immutable view of a run.
type Snapshot struct {
	State      State
	Since      time.Time
	PhaseSince time.Time                      // start of the phase; polling is a single phase
	Reason     string                         // message of the transition that explains the state
	Attempt    int                            // number of times the last transition was taken in this phase
	NextRetry  time.Time                      // time at which the timer fires; zero without a timer
	Condition  Condition                      // latest condition, which may have ended
	Word       bootstrap.InitializationStatus // last status of the sidecar
	Validation Validation                     // last requested validation
	History    []Transition                   // oldest first, at most 64 transitions
	EdgeCounts []EdgeCount                    // ordered by first occurrence

	changed chan struct{}
}

// Changed returns a channel that is closed once there is a newer snapshot.
func (s *Snapshot) Changed() <-chan struct{} { return s.changed }

// timeline records the history. A transition that is repeated within a phase, such as polling, is listed once with
// a count. If every repetition were listed, a loop would push older transitions out of the history.
type timeline struct {
	Snapshot            // next snapshot to publish
	endReasons []string // messages of the transitions that ended the run or set the exit status
}

func (l *timeline) enter(state State, now time.Time) {
	if l.PhaseSince.IsZero() || phaseOf(l.State) != phaseOf(state) {
		l.PhaseSince = now
	}
	if l.State != state {
		l.State, l.Since = state, now
	}
}

// phaseOf returns the first state of the phase that a state belongs to. For users, all states before the validation
// result are a single phase.
func phaseOf(state State) State {
	if slices.Contains(BeforeResult, state) {
		return BeforeResult[0]
	}
	return state
}

// add sets the duration and the count of a transition, adds it to the history and returns it. A repeated transition
// replaces its earlier entry.
func (l *timeline) add(t Transition) Transition {
	t.AfterSeconds = t.At.Sub(l.Since).Seconds()
	l.count(t)
	t.Count = 1
	if i := l.indexOfRepeat(t); i >= 0 {
		t.Count = l.History[i].Count + 1
		l.History = slices.Delete(l.History, i, i+1)
	}
	if len(l.History) == maxHistory {
		l.History = slices.Delete(l.History, 0, 1)
	}
	l.History = append(l.History, t)
	l.enter(t.To, t.At)
	return t
}

// count adds a transition to EdgeCounts, which has at most one entry per row.
func (l *timeline) count(t Transition) {
	i := slices.IndexFunc(l.EdgeCounts, func(e EdgeCount) bool {
		return e.From == t.From && e.Event == t.Event && e.Guard == t.Guard && e.To == t.To
	})
	if i < 0 {
		i = len(l.EdgeCounts)
		l.EdgeCounts = append(l.EdgeCounts, EdgeCount{From: t.From, Event: t.Event, Guard: t.Guard, To: t.To})
	}
	l.EdgeCounts[i].Count++
	l.EdgeCounts[i].Last = t.At
	if t.From != t.To {
		l.EdgeCounts[i].Seconds += t.AfterSeconds
	}
}

// indexOfRepeat returns the index of the same transition in the current phase, or -1.
func (l *timeline) indexOfRepeat(t Transition) int {
	for i := len(l.History) - 1; i >= 0 && isWithin(l.History[i], phaseOf(t.From)); i-- {
		if e := l.History[i]; e.From == t.From && e.Event == t.Event && e.Guard == t.Guard && e.To == t.To {
			return i
		}
	}
	return -1
}

// isWithin reports whether a transition starts and ends in a phase.
func isWithin(t Transition, phase State) bool {
	return phaseOf(t.From) == phase && phaseOf(t.To) == phase
}

// addEndReason adds the first line of a reason. Other lines, such as a stack trace, are only in the crash note.
func (l *timeline) addEndReason(reason string) {
	sentence, _, _ := strings.Cut(reason, "\n")
	l.endReasons = append(l.endReasons, sentence)
}

// endReason returns the reason for ending the run.
func (l *timeline) endReason() string { return strings.Join(l.endReasons, "; ") }

// record adds a transition to the timeline, publishes and logs it, and returns its message.
func (d *Driver) record(row *Row, payload Payload, pause time.Duration) (message string) {
	now, n := time.Now(), noticeFor(row, payload)
	taken := d.timeline.add(Transition{
		At: now, From: row.From, Event: row.On, Guard: row.When, To: row.To, Reason: n.message,
	})
	if !n.quiet {
		d.timeline.Reason = n.message
	}
	before := d.timeline.Condition
	d.timeline.Condition = before.update(row, payload, n, now)
	if payload.Validation != (Validation{}) {
		d.timeline.Validation = payload.Validation
	}
	d.publish(taken, now, pause)
	d.logTransition(taken, pause)
	if before.isActive() && d.timeline.Condition.Ended.Equal(now) {
		d.logResolved(before, now)
	}
	return n.message
}

// publish replaces the snapshot and notifies its readers.
func (d *Driver) publish(taken Transition, now time.Time, pause time.Duration) {
	next := d.timeline.Snapshot
	next.Attempt, next.Word, next.changed = taken.Count, d.core.Facts.Word, make(chan struct{})
	next.History, next.EdgeCounts = slices.Clone(next.History), slices.Clone(next.EdgeCounts)
	if pause > 0 {
		next.NextRetry = now.Add(pause)
	}
	if last := d.snapshot.Swap(&next); last != nil {
		close(last.changed)
	}
}

// logTransition logs a transition. Repetitions are logged only at debug level: the command, which watches the
// snapshots, logs conditions that persist.
func (d *Driver) logTransition(taken Transition, pause time.Duration) {
	entry := d.log.WithLevel(d.level(taken)).
		Str("from", string(taken.From)).Str("to", string(taken.To)).Str("event", string(taken.Event)).
		Int("times", taken.Count).Float64("after_ms", 1000*taken.AfterSeconds)
	if pause > 0 {
		entry = entry.Dur("next_within_ms", pause)
	}
	entry.Msg(taken.Reason)
}

// level returns the log level of a transition: debug for a repetition, error for a failure that ends the run, warn for
// other failures, and info otherwise.
func (d *Driver) level(taken Transition) zerolog.Level {
	current := d.timeline.Condition
	bad := current.At.Equal(taken.At)
	switch {
	case taken.Count > 1 && (!bad || current.Times > 1):
		return zerolog.DebugLevel
	case bad && (taken.To == Terminating || taken.To == Terminated):
		return zerolog.ErrorLevel
	case bad:
		return zerolog.WarnLevel
	default:
		return zerolog.InfoLevel
	}
}

// logResolved logs the end of a condition.
func (d *Driver) logResolved(resolved Condition, now time.Time) {
	d.log.Info().Str("class", string(resolved.Class)).Int("times", resolved.Times).Time("since", resolved.Since.UTC()).
		Dur("lasted_ms", now.Sub(resolved.Since)).Msg("recovered: " + resolved.Text)
}

// logWithoutRow logs an event that has no row in the current state. If the event is rejected, there is a bug, so the
// log level is error.
func (d *Driver) logWithoutRow(m message, decision statemachine.Decision) {
	logged := zerolog.DebugLevel
	if decision.Answer == statemachine.Reject {
		logged = zerolog.ErrorLevel
	}
	d.log.WithLevel(logged).Err(m.payload.Err).Str("state", string(d.core.State)).Str("event", string(m.event)).
		Str("answer", string(decision.Answer)).Msg(decision.Why)
}
