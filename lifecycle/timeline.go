package lifecycle

import (
	"slices"
	"strings"
	"time"

	"etcd-wrapper/bootstrap"
)

// maxHistory bounds the transitions that are kept.
const maxHistory = 64

// rotation is how many moves ago a row may have been taken to be counted instead of listed again. An initialization that
// fails at once goes round in five: New, accepted, elapsed, Failed, elapsed.
const rotation = 6

// Transition is one row that was taken.
type Transition struct {
	At     time.Time
	From   State
	Event  Event
	Guard  Guard
	To     State
	Reason string        // the row's, with what the event had to tell
	Times  int           // how often the row was taken in the current back and forth
	After  time.Duration // how long From had lasted by then

	move int // how many moves there were by then, this one included
}

// Tally adds up how often an event led from one state to another since the process started, for each guard that held.
type Tally struct {
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
	Reason     string
	Attempt    int                            // how often this state was entered the same way in a row
	NextRetry  time.Time                      // when the state's timer runs out; zero if it has none
	Trouble    Trouble                        // the latest, which may be over
	Word       bootstrap.InitializationStatus // the sidecar's last
	Validation Validation                     // the last that was asked for
	History    []Transition                   // oldest first, at most 64
	Tallies    []Tally                        // in the order in which each happened first

	superseded chan struct{}
}

// Superseded returns a channel that is closed when there is a newer snapshot. Nobody has to listen.
func (s *Snapshot) Superseded() <-chan struct{} { return s.superseded }

// timeline keeps the latest transitions. Rows that rotate, as in polling, are kept as an entry each, with a count.
type timeline struct {
	state      State
	since      time.Time
	last       []Transition
	moves      int // from one state to another
	tallies    []Tally
	trouble    Trouble
	validation Validation
	endReasons []string // the reasons for the end and for the exit status
}

func (l *timeline) arrive(state State, now time.Time) {
	if l.state != state {
		l.state, l.since = state, now
	}
}

// add keeps a transition and returns it with what follows from the ones before.
func (l *timeline) add(t Transition) Transition {
	t.After = t.At.Sub(l.since)
	l.tally(t)
	if t.From != t.To {
		l.moves++
	}
	t.move = l.moves
	t.Times = 1
	if i := l.repeated(t); i >= 0 {
		t.Times = l.last[i].Times + 1
		l.last = slices.Delete(l.last, i, i+1)
	}
	if len(l.last) == maxHistory {
		l.last = slices.Delete(l.last, 0, 1)
	}
	l.last = append(l.last, t)
	l.arrive(t.To, t.At)
	return t
}

// tally counts a transition for good. There are only as many tallies as the table has ways to go.
func (l *timeline) tally(t Transition) {
	i := slices.IndexFunc(l.tallies, func(e Tally) bool {
		return e.From == t.From && e.Event == t.Event && e.Guard == t.Guard && e.To == t.To
	})
	if i < 0 {
		i = len(l.tallies)
		l.tallies = append(l.tallies, Tally{From: t.From, Event: t.Event, Guard: t.Guard, To: t.To})
	}
	l.tallies[i].Times++
	l.tallies[i].Last = t.At
	if t.From != t.To {
		l.tallies[i].Spent += t.After
	}
}

// repeated returns the index of the same row, if it was taken a few moves ago, or -1. What makes no move is no news
// however long ago it was.
func (l *timeline) repeated(t Transition) int {
	return slices.IndexFunc(l.last, func(e Transition) bool {
		same := e.From == t.From && e.Event == t.Event && e.Guard == t.Guard && e.To == t.To
		return same && (t.From == t.To || t.move-e.move <= rotation)
	})
}

// explainEnd keeps a reason as one sentence: what follows in other lines, such as a trace, is in the crash note.
func (l *timeline) explainEnd(reason string) {
	sentence, _, _ := strings.Cut(reason, "\n")
	l.endReasons = append(l.endReasons, sentence)
}

// ending says why the run came to its end, and what decided how it ended.
func (l *timeline) ending() string { return strings.Join(l.endReasons, "; ") }
