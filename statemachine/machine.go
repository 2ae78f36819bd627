// Package statemachine is the pure core of the program's state machines: a table of rows made ready for look-ups, the answer
// to every event in every state, the looplab/fsm machine that has to agree, and the table's pictures. A machine is its
// own package, with its states, its facts and what its actions do; the lifecycle is one, recovery another.
//
// Nothing here does I/O, knows a clock or starts anything.
package statemachine

// State is a documented phase of a machine.
type State string

// Each returns the state alone.
func (s State) Each() []State { return []State{s} }

// Event is something that happened outside a machine and that it must answer.
type Event string

// Guard is the name of a condition over a machine's facts.
type Guard string

// Always is the guard of the last row for a state and an event.
const Always Guard = ""

// Action is the name of something that whoever drives a machine does.
type Action string

// Answer is what a machine does with an event.
type Answer string

// The answers. Every state has one for every event.
const (
	Move   Answer = "move"   // into another state
	Stay   Answer = "stay"   // in the state
	Ignore Answer = "ignore" // it may come and changes nothing
	Reject Answer = "reject" // it cannot come; logged as a fault of this program
)

// Row is one transition: in From, when On happens and When holds, go To and Do the actions. Why says it in words for
// people. Rows hold names only, so that they can be compared, drawn and mutated.
type Row struct {
	From State    `json:"from"`
	On   Event    `json:"on"`
	When Guard    `json:"when,omitempty"`
	To   State    `json:"to"`
	Do   []Action `json:"do,omitempty"`
	Why  string   `json:"why"`
}

// Edge is the row's name among those that start from the same state. The guard belongs to it, because looplab/fsm lets a
// second row for the same event and source silently replace the first.
func (row *Row) Edge() string {
	if row.When == Always {
		return string(row.On)
	}
	return string(row.On) + " [" + string(row.When) + "]"
}

func (row *Row) answer() Answer {
	if row.To == row.From {
		return Stay
	}
	return Move
}

// Default is the answer to an event in every state that has no row for it.
type Default struct {
	On     Event  `json:"on"`
	Answer Answer `json:"answer"`
	Why    string `json:"why"`
}
