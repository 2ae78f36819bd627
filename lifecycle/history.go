package lifecycle

import (
	"slices"
	"strings"
	"time"

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
	Reason string // the row's, with what the event had to tell
	Times  int    // how often the row was taken in the current back and forth
}

// Snapshot is everything there is to know about a run at one moment. It never changes.
type Snapshot struct {
	State     State
	Since     time.Time
	Reason    string
	Attempt   int       // how often this state was entered the same way in a row
	NextRetry time.Time // when the state's timer runs out; zero if it has none
	LastError string    // the latest thing that went wrong, or empty
	Word      bootstrap.Status
	History   []Transition // oldest first, at most 64
}

// history keeps the latest transitions. Two rows that alternate, as in polling, are kept as two entries with a count.
type history struct {
	state State
	since time.Time
	last  []Transition
	error string

	decisive []string // the reasons for the end and for the exit status
}

func (h *history) arrive(state State, now time.Time) {
	if h.state != state {
		h.state, h.since = state, now
	}
}

// add keeps a transition and returns it with its count.
func (h *history) add(t Transition) Transition {
	t.Times = 1
	if i := h.repeated(t); i >= 0 {
		t.Times = h.last[i].Times + 1
		h.last = slices.Delete(h.last, i, i+1)
	}
	if len(h.last) == maxHistory {
		h.last = slices.Delete(h.last, 0, 1)
	}
	h.last = append(h.last, t)
	h.arrive(t.To, t.At)
	return t
}

// repeated returns the index of the same row one or two entries back, or -1.
func (h *history) repeated(t Transition) int {
	for i := len(h.last) - 1; i >= max(0, len(h.last)-2); i-- {
		if e := h.last[i]; e.From == t.From && e.Event == t.Event && e.Guard == t.Guard && e.To == t.To {
			return i
		}
	}
	return -1
}

// copied is for snapshots, which never change.
func (h *history) copied() []Transition { return slices.Clone(h.last) }

// decide keeps a reason as one sentence: what follows in other lines, such as a trace, is in the crash note.
func (h *history) decide(reason string) {
	sentence, _, _ := strings.Cut(reason, "\n")
	h.decisive = append(h.decisive, sentence)
}

// ending says why the run came to its end, and what decided how it ended.
func (h *history) ending() string { return strings.Join(h.decisive, "; ") }
