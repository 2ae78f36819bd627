// Package statemachine is the pure core of the program's state machines: a table of rows made ready for look-ups, the answer
// to every event in every state, the looplab/fsm machine that has to agree, and the table's pictures. A machine is its
// own package, with its states, its facts and what its actions do; the lifecycle is one, recovery another.
//
// Nothing here does I/O, knows a clock or starts anything.
package statemachine

import (
	"slices"
	"strings"
)

// State is a documented phase of a machine.
type State string

// Each returns the state alone.
func (s State) States() []State { return []State{s} }

// Event is something that happened outside a machine and that it must answer.
type Event string

// Guard is the name of a condition over a machine's facts.
type Guard string

// Always is the guard of the last row for a state and an event.
const Always Guard = ""

// Action is the name of something that a machine's driver does.
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

// Late are events that may come where no row awaits them any longer, and why they change nothing there.
type LateEvents struct {
	Why string
	On  []Event
}

// RejectElsewhere are the answers of a machine whose events come only where a row awaits them, as they end the work of a state, but for
// those that may come late.
func RejectByDefault(table []Row, late ...LateEvents) (answers []Default) {
	awaits := map[Event][]string{}
	for _, row := range table {
		if len(awaits[row.On]) == 0 {
			answers = append(answers, Default{On: row.On, Answer: Reject})
		}
		if from := string(row.From); !slices.Contains(awaits[row.On], from) {
			awaits[row.On] = append(awaits[row.On], from)
		}
	}
	for i := range answers {
		answers[i].Why = "only " + strings.Join(awaits[answers[i].On], ", ") + " awaits it"
		for _, ignored := range late {
			if slices.Contains(ignored.On, answers[i].On) {
				answers[i].Answer, answers[i].Why = Ignore, ignored.Why
			}
		}
	}
	return answers
}

// Source is where a row of a table may start: a State, or a Group of them.
type Source interface{ States() []State }

// Group is states for which the same row is right.
type Group []State

// Each returns the states of the group, in the order of a run.
func (g Group) States() []State { return g }

// Stays in the place of To is the state that the row starts from, whichever of a group it is. It is no state itself.
const Stays = State("")

// Entry is a row as it is written: it may start in a group. A machine's package has a type of its own made from it, so
// that its table can be written without the fields' names.
type Entry struct {
	From Source
	On   Event
	When Guard
	To   State
	Do   []Action
	Why  string
}

// Written is what a table can be written as.
type Written interface {
	~struct {
		From Source
		On   Event
		When Guard
		To   State
		Do   []Action
		Why  string
	}
}

// Expand writes a row for every state of a group, so that each state has rows of its own.
func Expand[E Written](entries []E) []Row {
	var table []Row
	for _, e := range entries {
		for _, from := range Entry(e).From.States() {
			table = append(table, Entry(e).row(from))
		}
	}
	return table
}

func (e Entry) row(from State) Row {
	row := Row{From: from, On: e.On, When: e.When, To: e.To, Do: e.Do, Why: e.Why}
	if row.To == Stays {
		row.To = from
	}
	return row
}

// Facts are what the guards of a machine may ask about. F is the type itself, P what comes with an event.
type Facts[F, P any] interface {
	// Holds reports whether a guard's condition is true; that of a guard it doesn't know never is, and Always always is.
	Holds(guard Guard) bool
	// Learn returns the facts with what comes with an event, before the table is asked.
	Learn(event Event, payload P) F
	// Conclude returns the facts with what follows from the answer.
	Conclude(from State, event Event, to State, payload P) F
}

// Core is a machine between two events: a state and the facts known in it.
type Core[F any] struct {
	State State
	Facts F
}

// Decision is the answer to one event.
type Decision struct {
	Answer Answer
	Row    int // index of the table's row, -1 if none answered
	To     State
	Do     []Action
	Why    string
}

// Rules are a table made ready for look-ups. They never change and may be shared.
type Rules[F Facts[F, P], P any] struct {
	rows     []Row
	final    State
	byCell   map[cell][]int // indices of rows
	defaults map[Event]Default
	events   []Event // all of them, in the order of the defaults
}

// cell is a cell of the matrix: what one state answers to one event.
type cell struct {
	state State
	event Event
}

// NewRules makes rules of a table, and of the answers where it has no row. In the final state every event is ignored.
func NewRules[F Facts[F, P], P any](table []Row, elsewhere []Default, final State) *Rules[F, P] {
	rules := &Rules[F, P]{rows: table, final: final, byCell: map[cell][]int{}, defaults: map[Event]Default{}}
	for i, row := range table {
		at := cell{row.From, row.On}
		rules.byCell[at] = append(rules.byCell[at], i)
	}
	for _, answer := range elsewhere {
		rules.defaults[answer.On] = answer
		rules.events = append(rules.events, answer.On)
	}
	return rules
}

// Row is a row of the table, by a decision's index.
func (r *Rules[F, P]) Row(index int) *Row { return &r.rows[index] }

// Step returns the machine after the event, and what to do about it.
func (r *Rules[F, P]) Step(c Core[F], event Event, payload P) (Core[F], Decision) {
	facts := c.Facts.Learn(event, payload)
	decision := r.match(c.State, event, facts)
	if decision.Row < 0 {
		return c, decision
	}
	return Core[F]{State: decision.To, Facts: facts.Conclude(c.State, event, decision.To, payload)}, decision
}

func (r *Rules[F, P]) match(state State, event Event, facts F) Decision {
	for _, i := range r.byCell[cell{state, event}] {
		if row := &r.rows[i]; facts.Holds(row.When) {
			return Decision{Answer: row.answer(), Row: i, To: row.To, Do: row.Do, Why: row.Why}
		}
	}
	answer, why := r.defaultFor(state, event)
	return Decision{Answer: answer, Row: -1, To: state, Why: why}
}

func (r *Rules[F, P]) defaultFor(state State, event Event) (Answer, string) {
	if state == r.final {
		return Ignore, "the end is reached"
	}
	if answer, known := r.defaults[event]; known {
		return answer.Answer, answer.Why
	}
	return Reject, "no such event"
}
