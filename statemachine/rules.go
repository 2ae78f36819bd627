package statemachine

// Facts are what the guards of a machine may ask about. F is the type itself, P what an event has to tell beside its name.
type Facts[F, P any] interface {
	// Holds reports whether a guard's condition is true; that of a guard it doesn't know never is, and Always always is.
	Holds(guard Guard) bool
	// Learn returns the facts with what an event tells, before the table is asked.
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
	decision := r.decide(c.State, event, facts)
	if decision.Row < 0 {
		return c, decision
	}
	return Core[F]{State: decision.To, Facts: facts.Conclude(c.State, event, decision.To, payload)}, decision
}

func (r *Rules[F, P]) decide(state State, event Event, facts F) Decision {
	for _, i := range r.byCell[cell{state, event}] {
		if row := &r.rows[i]; facts.Holds(row.When) {
			return Decision{Answer: row.answer(), Row: i, To: row.To, Do: row.Do, Why: row.Why}
		}
	}
	answer, why := r.elsewhere(state, event)
	return Decision{Answer: answer, Row: -1, To: state, Why: why}
}

func (r *Rules[F, P]) elsewhere(state State, event Event) (Answer, string) {
	if state == r.final {
		return Ignore, "the end is reached"
	}
	if answer, known := r.defaults[event]; known {
		return answer.Answer, answer.Why
	}
	return Reject, "no such event"
}
