package statemachine

import (
	"slices"
	"strings"
	"time"
)

// State names a phase of a machine.
type State string

// States returns only the state itself.
func (s State) States() []State { return []State{s} }

// Event names something that happened outside the machine. A machine answers every event in every state.
type Event string

// Guard names a condition on the facts of a machine.
type Guard string

// Always is the guard of the last row for a state and an event.
const Always Guard = ""

// Action names something that a machine's driver does.
type Action string

// Answer classifies how a machine responds to an event.
type Answer string

// Answers to an event. Move and Stay require a row of the table; Ignore and Reject are defaults.
const (
	Move   Answer = "move"   // go to another state and perform the actions of the row
	Stay   Answer = "stay"   // stay in the state and perform the actions of the row
	Ignore Answer = "ignore" // do nothing, because the event is harmless in this state
	Reject Answer = "reject" // log a bug, because the event is impossible in this state
)

// Row is a transition: in state From, if event On occurs and guard When holds, go to state To and perform actions Do.
// Why is the reason shown to users. Rows contain only names, so they can be compared, drawn and mutated.
type Row struct {
	From State    `json:"from"`
	On   Event    `json:"on"`
	When Guard    `json:"when,omitempty"`
	To   State    `json:"to"`
	Do   []Action `json:"do,omitempty"`
	Why  string   `json:"why"`
}

// Edge returns a name that is unique among the rows with the same From. The name includes the guard, because
// looplab/fsm would silently replace the first of two rows with the same source and event.
func (row *Row) Edge() string {
	if row.When == Always {
		return string(row.On)
	}
	return string(row.On) + " [" + string(row.When) + "]"
}

// Moves reports whether the row leads to another state.
func (row *Row) Moves() bool { return row.From != row.To }

// Transition is a history entry in the status document: either a row that was taken or a readiness change.
type Transition struct {
	At           time.Time `json:"at"`
	From         State     `json:"from"`
	Event        Event     `json:"event"`
	Guard        Guard     `json:"guard,omitempty"`
	To           State     `json:"to"`
	Reason       string    `json:"reason"`        // reason of the row with details of the event
	Count        int       `json:"count"`         // number of occurrences in one phase, such as polling; they share an entry
	AfterSeconds float64   `json:"after_seconds"` // since From was entered; for a readiness change, since the previous one
}

// TransitionCount counts how often a row was taken since the process started.
type TransitionCount struct {
	From    State     `json:"from"`
	Event   Event     `json:"event"`
	Guard   Guard     `json:"guard,omitempty"`
	To      State     `json:"to"`
	Count   int       `json:"count"`
	Last    time.Time `json:"last"`
	Seconds float64   `json:"seconds"` // total time spent in From before these transitions; 0 if From is To
}

// Default is the answer to an event in every state that has no row for it.
type Default struct {
	On     Event  `json:"on"`
	Answer Answer `json:"answer"`
	Why    string `json:"why"`
}

// LateEvents lists events to ignore in states that have no row for them. Why is the reason.
type LateEvents struct {
	Why string
	On  []Event
}

// RejectByDefault returns a default for every event in a table. A state without a row for the event rejects the event
// as a bug, or ignores it if the event is listed as late.
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
		answers[i].Why = "expected only in " + strings.Join(awaits[answers[i].On], ", ")
		for _, ignored := range late {
			if slices.Contains(ignored.On, answers[i].On) {
				answers[i].Answer, answers[i].Why = Ignore, ignored.Why
			}
		}
	}
	return answers
}

// Source is the From of a row: a State or a Group.
type Source interface{ States() []State }

// Group is a set of states that share a row.
type Group []State

// States returns the states of the group.
func (g Group) States() []State { return g }

// Stays as the To of an entry means that the state does not change. Expand replaces Stays with the state in From.
const Stays = State("")

// Entries lists the rows of a table as written in the source, where the From of a row may be a group of states. The
// row type is unnamed so that tables can omit the field names.
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

// Facts contains everything that a machine's guards depend on. F is the type that implements Facts, and P is the
// payload of an event.
type Facts[F, P any] interface {
	// Holds reports whether a guard is true. The guard Always is always true, and an unknown guard is never true.
	Holds(guard Guard) bool
	// Learn returns the facts updated with the payload of an event. The machine calls Learn before it looks up a row,
	// and discards the result if no row matches.
	Learn(event Event, payload P) F
	// Conclude returns the facts updated after a row was taken, even if the row does not change the state.
	Conclude(from State, event Event, to State, payload P) F
}

// Conditions maps guards to conditions on facts.
type Conditions[F any] map[Guard]func(F) bool

// Evaluate reports whether a guard is true. The guard Always is always true, and an unknown guard is never true.
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
	Row    int // index of the row in the table, or -1 if no row matched
	To     State
	Do     []Action
	Why    string
}

// Rules is a table prepared for lookups. It is immutable and safe for concurrent use.
type Rules[F Facts[F, P], P any] struct {
	rows     []Row
	final    State
	byKey    map[key][]int // row indices by state and event, in table order
	defaults map[Event]Default
	events   []Event // all events, in the order of the defaults
}

// key identifies a state and an event.
type key struct {
	state State
	event Event
}

// NewRules builds rules from a table and the default answers to events without a row. The final state ignores every
// event that has no row.
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

// Row returns the row with the given index, such as the one in a Decision.
func (r *Rules[F, P]) Row(index int) *Row { return &r.rows[index] }

// Step returns the machine after an event, and the decision. If no row matches, Step returns the machine unchanged.
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
		return Ignore, "the machine has reached its final state"
	}
	if answer, known := r.defaults[event]; known {
		return answer.Answer, answer.Why
	}
	return Reject, "no such event"
}
