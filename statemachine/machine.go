package statemachine

import (
	"slices"
	"strings"
	"time"
)

// State names a phase of a machine.
type State string

// States returns the state alone.
func (s State) States() []State { return []State{s} }

// Event names something that happened outside a machine. The machine answers every event in every state.
type Event string

// Guard names a condition over a machine's facts.
type Guard string

// Always is the guard of the last row for a state and an event.
const Always Guard = ""

// Action names something that a machine's driver does.
type Action string

// Answer classifies the response of a machine to an event.
type Answer string

// The answers.
const (
	Move   Answer = "move"   // change the state
	Stay   Answer = "stay"   // keep the state, but perform the row's actions
	Ignore Answer = "ignore" // the event is legal here but changes nothing
	Reject Answer = "reject" // the event is impossible here and is logged as a bug
)

// Row is one transition: in From, if On happens and When holds, go To and Do the actions. Why is the reason, a
// sentence for users. Rows contain only names, so that they can be compared, drawn and mutated.
type Row struct {
	From State    `json:"from"`
	On   Event    `json:"on"`
	When Guard    `json:"when,omitempty"`
	To   State    `json:"to"`
	Do   []Action `json:"do,omitempty"`
	Why  string   `json:"why"`
}

// Edge names the row among those with the same From. The name includes the guard, because a second row for the same
// event and source would silently replace the first in looplab/fsm.
func (row *Row) Edge() string {
	if row.When == Always {
		return string(row.On)
	}
	return string(row.On) + " [" + string(row.When) + "]"
}

// Moves reports whether the row leads to another state.
func (row *Row) Moves() bool { return row.From != row.To }

// Transition is a row that was taken, or a change of readiness, as the status document shows it.
type Transition struct {
	At           time.Time `json:"at"`
	From         State     `json:"from"`
	Event        Event     `json:"event"`
	Guard        Guard     `json:"guard,omitempty"`
	To           State     `json:"to"`
	Reason       string    `json:"reason"`        // reason of the row, with the details of the event
	Count        int       `json:"count"`         // number of occurrences; alternating transitions are listed once
	AfterSeconds float64   `json:"after_seconds"` // duration of the visit to From
}

// TransitionCount counts how often a row was taken since the process started.
type TransitionCount struct {
	From    State     `json:"from"`
	Event   Event     `json:"event"`
	Guard   Guard     `json:"guard,omitempty"`
	To      State     `json:"to"`
	Count   int       `json:"count"`
	Last    time.Time `json:"last"`
	Seconds float64   `json:"seconds"` // total duration of the visits to From that ended in this way; 0 if From is To
}

// Default is the answer to an event in every state that has no row for it.
type Default struct {
	On     Event  `json:"on"`
	Answer Answer `json:"answer"`
	Why    string `json:"why"`
}

// LateEvents are ignored in the states that have no row for them. Why is the reason.
type LateEvents struct {
	Why string
	On  []Event
}

// RejectByDefault returns the defaults of a machine whose events end the work of a state. Such an event is only
// possible where a row expects it, unless it is listed as late.
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

// Source is the origin of a row in a table: a State or a Group.
type Source interface{ States() []State }

// Group is a set of states that share a row.
type Group []State

// States returns the states of the group, in the order of a run.
func (g Group) States() []State { return g }

// Stays as the To of a row in Entries means that the row keeps its state. It is not itself a state.
const Stays = State("")

// Entries are the rows of a table in source form: a row may start in a group. The row type is unnamed, so that tables
// can omit the names of the fields.
type Entries []struct {
	From Source
	On   Event
	When Guard
	To   State
	Do   []Action
	Why  string
}

// Expand returns a row for every state of every group.
func Expand(entries Entries) (table []Row) {
	for _, e := range entries {
		for _, from := range e.From.States() {
			row := Row{From: from, On: e.On, When: e.When, To: e.To, Do: e.Do, Why: e.Why}
			if row.To == Stays {
				row.To = from
			}
			table = append(table, row)
		}
	}
	return table
}

// Facts hold everything that the guards of a machine depend on. F is the implementing type, P the payload of an event.
type Facts[F, P any] interface {
	// Holds reports whether a guard's condition is true. Always holds; an unknown guard never does.
	Holds(guard Guard) bool
	// Learn returns the facts updated with the payload of an event. It runs before the table is consulted.
	Learn(event Event, payload P) F
	// Conclude returns the facts updated after the transition.
	Conclude(from State, event Event, to State, payload P) F
}

// Conditions define the guards as conditions over facts.
type Conditions[F any] map[Guard]func(F) bool

// Evaluate reports whether a guard's condition is true. Always holds; an unknown guard never does.
func (c Conditions[F]) Evaluate(guard Guard, facts F) bool {
	condition, known := c[guard]
	return guard == Always || known && condition(facts)
}

// Core is the state of a machine between two events.
type Core[F any] struct {
	State State
	Facts F
}

// Decision is the answer to one event.
type Decision struct {
	Answer Answer
	Row    int // index of the row in the table, or -1 if there was none
	To     State
	Do     []Action
	Why    string
}

// Rules are a table prepared for lookups. They are immutable and may be shared.
type Rules[F Facts[F, P], P any] struct {
	rows     []Row
	final    State
	byKey    map[key][]int // indices of rows
	defaults map[Event]Default
	events   []Event // all events, in the order of the defaults
}

// key identifies a state and an event.
type key struct {
	state State
	event Event
}

// NewRules builds rules from a table, and from the default answers where the table has no row. In the final state
// every event is ignored.
func NewRules[F Facts[F, P], P any](table []Row, elsewhere []Default, final State) *Rules[F, P] {
	rules := &Rules[F, P]{rows: table, final: final, byKey: map[key][]int{}, defaults: map[Event]Default{}}
	for i, row := range table {
		at := key{row.From, row.On}
		rules.byKey[at] = append(rules.byKey[at], i)
	}
	for _, answer := range elsewhere {
		rules.defaults[answer.On] = answer
		rules.events = append(rules.events, answer.On)
	}
	return rules
}

// Row returns the row of the table that made a decision.
func (r *Rules[F, P]) Row(index int) *Row { return &r.rows[index] }

// Step returns the machine after the event, and the decision about it.
func (r *Rules[F, P]) Step(c Core[F], event Event, payload P) (Core[F], Decision) {
	facts := c.Facts.Learn(event, payload)
	decision := r.match(c.State, event, facts)
	if decision.Row < 0 {
		return c, decision
	}
	return Core[F]{State: decision.To, Facts: facts.Conclude(c.State, event, decision.To, payload)}, decision
}

func (r *Rules[F, P]) match(state State, event Event, facts F) Decision {
	for _, i := range r.byKey[key{state, event}] {
		if row := &r.rows[i]; facts.Holds(row.When) {
			answer := Stay
			if row.Moves() {
				answer = Move
			}
			return Decision{Answer: answer, Row: i, To: row.To, Do: row.Do, Why: row.Why}
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
