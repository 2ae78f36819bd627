package lifecycle

import (
	"slices"
	"time"

	"github.com/rs/zerolog"
)

// everyNth is how often a repeated failure is logged after the first.
const everyNth = 20

// record remembers, publishes and logs that a row was taken.
func (d *Driver) record(row *Row, payload Payload, pause time.Duration) {
	now := time.Now()
	taken := d.timeline.add(Transition{
		At: now, From: row.From, Event: row.On, Guard: row.When, To: row.To, Reason: reason(row, payload),
	})
	if trouble, is := trouble(row, payload, now); is {
		d.timeline.trouble = trouble
	}
	if payload.Validation != (Validation{}) {
		d.timeline.validation = payload.Validation
	}
	d.publish(taken, now, pause)
	d.logTaken(taken, payload, pause)
}

// reason is the row's reason with what the event had to tell.
func reason(row *Row, payload Payload) string {
	why := row.Why
	if payload.Detail != "" {
		why += " (" + payload.Detail + ")"
	}
	if payload.Err != nil {
		why += ": " + payload.Err.Error()
	}
	return why
}

// publish replaces the snapshot and wakes whoever waits for that. It never waits for a reader.
func (d *Driver) publish(taken Transition, now time.Time, pause time.Duration) {
	next := &Snapshot{
		State: d.core.State, Since: d.timeline.since, Reason: taken.Reason, Attempt: taken.Times,
		Trouble: d.timeline.trouble, Word: d.core.Facts.Word, Validation: d.timeline.validation,
		History: slices.Clone(d.timeline.last), Tallies: slices.Clone(d.timeline.tallies),
		superseded: make(chan struct{}),
	}
	if pause > 0 {
		next.NextRetry = now.Add(pause)
	}
	if last := d.snapshot.Swap(next); last != nil {
		close(last.superseded)
	}
}

// logTaken writes one line for a row: always the first time, every n-th time while it alternates with its return.
func (d *Driver) logTaken(taken Transition, payload Payload, pause time.Duration) {
	entry := d.log.WithLevel(level(taken, payload)).
		Str("from", string(taken.From)).Str("to", string(taken.To)).Str("event", string(taken.Event)).
		Int("times", taken.Times).Dur("after", taken.After)
	if pause > 0 {
		entry = entry.Dur("next_within", pause)
	}
	entry.Msg(taken.Reason)
}

func level(taken Transition, payload Payload) zerolog.Level {
	switch {
	case taken.Times > 1 && taken.Times%everyNth != 0:
		return zerolog.DebugLevel
	case payload.Err != nil && taken.To == Terminating:
		return zerolog.ErrorLevel
	case payload.Err != nil:
		return zerolog.WarnLevel
	default:
		return zerolog.InfoLevel
	}
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
