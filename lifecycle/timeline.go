package lifecycle

import (
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"etcd-wrapper/bootstrap"
)

// maxHistory bounds the transitions that are kept.
const maxHistory = 64

// Transition is one row that was taken.
type Transition struct {
	At     time.Time
	From   State
	Event  Event
	Guard  Guard
	To     State
	Reason string        // the row's, with what came with the event
	Times  int           // how often the row was taken in the current phase
	After  time.Duration // how long From had lasted by then

	move int // how many moves there were by then, this one included
}

// Tally adds up how often an event led from one state to another since the process started, for each guard that held.
type EdgeCount struct {
	From  State
	Event Event
	Guard Guard
	To    State
	Times int
	Last  time.Time
	Spent time.Duration // in From, by all visits that ended this way; 0 if From is To
}

// Validation is how the data directory is validated in this run, once it was asked for.
type Validation struct {
	Mode bootstrap.Mode
	Why  string // a clause
}

// Snapshot is everything there is to know about a run at one moment. It never changes.
type Snapshot struct {
	State      State
	Since      time.Time
	PhaseSince time.Time                      // of the phase, which polling does not begin anew
	Reason     string                         // what the state is about
	Attempt    int                            // how often this state was entered the same way in a row
	NextRetry  time.Time                      // when the state's timer runs out; zero if it has none
	Condition  Condition                      // the latest, which may be over: see Ended
	Word       bootstrap.InitializationStatus // the sidecar's last
	Validation Validation                     // the last that was asked for
	History    []Transition                   // oldest first, at most 64
	EdgeCounts []EdgeCount                    // in the order in which each happened first

	changed chan struct{}
}

// Superseded returns a channel that is closed when there is a newer snapshot. Nobody has to listen.
func (s *Snapshot) Changed() <-chan struct{} { return s.changed }

// timeline keeps the latest transitions. Rows that are taken again within a phase, as in polling or while initializations
// fail, are kept once, with a count: however long a loop is, it leaves room for what came before it.
type timeline struct {
	state      State
	since      time.Time
	phaseSince time.Time
	reason     string // what the state is about
	last       []Transition
	moves      int // from one state to another
	counts     []EdgeCount
	condition  Condition
	validation Validation
	endReasons []string // the reasons for the end and for the exit status
}

func (l *timeline) enter(state State, now time.Time) {
	if l.phaseSince.IsZero() || phaseOf(l.state) != phaseOf(state) {
		l.phaseSince = now
	}
	if l.state != state {
		l.state, l.since = state, now
	}
}

// phaseOf is the first state of those that people see as one: the wait for a result.
func phaseOf(state State) State {
	if slices.Contains(BeforeResult, state) {
		return BeforeResult[0]
	}
	return state
}

// add keeps a transition and returns it with what follows from the ones before.
func (l *timeline) add(t Transition) Transition {
	t.After = t.At.Sub(l.since)
	l.count(t)
	if t.From != t.To {
		l.moves++
	}
	t.move = l.moves
	t.Times = 1
	if i := l.indexOfRepeat(t); i >= 0 {
		t.Times = l.last[i].Times + 1
		l.last = slices.Delete(l.last, i, i+1)
	}
	if len(l.last) == maxHistory {
		l.last = slices.Delete(l.last, 0, 1)
	}
	l.last = append(l.last, t)
	l.enter(t.To, t.At)
	return t
}

// tally counts a transition for good. There are only as many tallies as the table has ways to go.
func (l *timeline) count(t Transition) {
	i := slices.IndexFunc(l.counts, func(e EdgeCount) bool {
		return e.From == t.From && e.Event == t.Event && e.Guard == t.Guard && e.To == t.To
	})
	if i < 0 {
		i = len(l.counts)
		l.counts = append(l.counts, EdgeCount{From: t.From, Event: t.Event, Guard: t.Guard, To: t.To})
	}
	l.counts[i].Times++
	l.counts[i].Last = t.At
	if t.From != t.To {
		l.counts[i].Spent += t.After
	}
}

// repeated returns the index of the same row in the current phase, or -1.
func (l *timeline) indexOfRepeat(t Transition) int {
	for i := len(l.last) - 1; i >= 0 && isWithin(l.last[i], phaseOf(t.From)); i-- {
		if e := l.last[i]; e.From == t.From && e.Event == t.Event && e.Guard == t.Guard && e.To == t.To {
			return i
		}
	}
	return -1
}

// within reports whether a transition began and ended in a phase.
func isWithin(t Transition, phase State) bool {
	return phaseOf(t.From) == phase && phaseOf(t.To) == phase
}

// explainEnd keeps a reason as one sentence: what follows in other lines, such as a trace, is in the crash note.
func (l *timeline) addEndReason(reason string) {
	sentence, _, _ := strings.Cut(reason, "\n")
	l.endReasons = append(l.endReasons, sentence)
}

// ending says why the run came to its end, and what decided how it ended.
func (l *timeline) endReason() string { return strings.Join(l.endReasons, "; ") }

// record remembers, publishes and logs that a row was taken.
func (d *Driver) record(row *Row, payload Payload, pause time.Duration) {
	now, words := time.Now(), hintFor(row)
	message := words.message(payload)
	taken := d.timeline.add(Transition{
		At: now, From: row.From, Event: row.On, Guard: row.When, To: row.To, Reason: message,
	})
	if !words.Quiet {
		d.timeline.reason = message
	}
	was := d.timeline.condition
	d.timeline.condition = was.update(row, payload, now)
	if payload.Validation != (Validation{}) {
		d.timeline.validation = payload.Validation
	}
	d.publish(taken, now, pause)
	d.logTransition(taken, pause)
	if was.isActive() && d.timeline.condition.Ended.Equal(now) {
		d.logResolved(was, now)
	}
}

// publish replaces the snapshot and wakes its readers. It never waits for one.
func (d *Driver) publish(taken Transition, now time.Time, pause time.Duration) {
	next := &Snapshot{
		State: d.core.State, Since: d.timeline.since, PhaseSince: d.timeline.phaseSince, Reason: d.timeline.reason, Attempt: taken.Times,
		Condition: d.timeline.condition, Word: d.core.Facts.Word, Validation: d.timeline.validation,
		History: slices.Clone(d.timeline.last), EdgeCounts: slices.Clone(d.timeline.counts),
		changed: make(chan struct{}),
	}
	if pause > 0 {
		next.NextRetry = now.Add(pause)
	}
	if last := d.snapshot.Swap(next); last != nil {
		close(last.changed)
	}
}

// logTaken writes one line for a row: the first time in a phase, and when what is wrong changes. A watcher of the
// snapshots reminds people of what lasts.
func (d *Driver) logTransition(taken Transition, pause time.Duration) {
	entry := d.log.WithLevel(d.level(taken)).
		Str("from", string(taken.From)).Str("to", string(taken.To)).Str("event", string(taken.Event)).
		Int("times", taken.Times).Dur("after_ms", taken.After)
	if pause > 0 {
		entry = entry.Dur("next_within_ms", pause)
	}
	entry.Msg(taken.Reason)
}

// level is that of an alert for trouble: error where it ends the run, warn elsewhere.
func (d *Driver) level(taken Transition) zerolog.Level {
	trouble := d.timeline.condition
	bad := trouble.At.Equal(taken.At)
	switch {
	case taken.Times > 1 && (!bad || trouble.Times > 1):
		return zerolog.DebugLevel
	case bad && (taken.To == Terminating || taken.To == Terminated):
		return zerolog.ErrorLevel
	case bad:
		return zerolog.WarnLevel
	default:
		return zerolog.InfoLevel
	}
}

// logOver says that trouble is over which has lasted.
func (d *Driver) logResolved(trouble Condition, now time.Time) {
	d.log.Info().Str("class", string(trouble.Class)).Int("times", trouble.Times).Time("since", trouble.Since.UTC()).
		Dur("lasted_ms", now.Sub(trouble.Since)).Msg("over: " + trouble.Text)
}

// logWithoutRow logs an event that has no row; one that cannot come is a fault of this program.
func (d *Driver) logWithoutRow(m message, decision Decision) {
	logged := zerolog.DebugLevel
	if decision.Answer == Reject {
		logged = zerolog.ErrorLevel
	}
	d.log.WithLevel(logged).Err(m.payload.Err).Str("state", string(d.core.State)).Str("event", string(m.event)).
		Str("answer", string(decision.Answer)).Msg(decision.Why)
}
