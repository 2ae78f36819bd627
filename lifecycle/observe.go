package lifecycle

import (
	"slices"
	"time"

	"github.com/rs/zerolog"
)

// record remembers, publishes and logs that a row was taken.
func (d *Driver) record(row *Row, payload Payload, pause time.Duration) {
	now, words := time.Now(), wordsFor(row)
	message := words.message(payload)
	taken := d.timeline.add(Transition{
		At: now, From: row.From, Event: row.On, Guard: row.When, To: row.To, Reason: message,
	})
	if !words.Goes {
		d.timeline.reason = message
	}
	was := d.timeline.trouble
	d.timeline.trouble = was.live(row, payload, now)
	if payload.Validation != (Validation{}) {
		d.timeline.validation = payload.Validation
	}
	d.publish(taken, now, pause)
	d.logTaken(taken, pause)
	if was.lasts() && d.timeline.trouble.Ended.Equal(now) {
		d.logOver(was, now)
	}
}

// publish replaces the snapshot and wakes whoever waits for that. It never waits for a reader.
func (d *Driver) publish(taken Transition, now time.Time, pause time.Duration) {
	next := &Snapshot{
		State: d.core.State, Since: d.timeline.since, PhaseSince: d.timeline.phaseSince, Reason: d.timeline.reason, Attempt: taken.Times,
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

// logTaken writes one line for a row: the first time in a phase, and when what is wrong changes. Whoever watches the
// snapshots reminds people of what lasts.
func (d *Driver) logTaken(taken Transition, pause time.Duration) {
	entry := d.log.WithLevel(d.level(taken)).
		Str("from", string(taken.From)).Str("to", string(taken.To)).Str("event", string(taken.Event)).
		Int("times", taken.Times).Dur("after", taken.After)
	if pause > 0 {
		entry = entry.Dur("next_within", pause)
	}
	entry.Msg(taken.Reason)
}

// level is that of an alert for trouble: error where the run ends by it, warn where it goes on.
func (d *Driver) level(taken Transition) zerolog.Level {
	trouble := d.timeline.trouble
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
func (d *Driver) logOver(trouble Trouble, now time.Time) {
	d.log.Info().Str("class", string(trouble.Class)).Int("times", trouble.Times).Time("since", trouble.Since.UTC()).
		Dur("lasted", now.Sub(trouble.Since)).Msg("over: " + trouble.Text)
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
