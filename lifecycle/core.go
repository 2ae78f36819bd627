package lifecycle

// Core is the pure machine between two events: a state and the facts known in it.
type Core struct {
	State State
	Facts Facts
}

// NewCore returns the machine as a process starts it.
func NewCore() Core { return Core{State: Query} }

// Decision is the answer to one event.
type Decision struct {
	Answer Answer
	Row    int // index of the table's row, -1 if none answered
	To     State
	Do     []Action
	Why    string
}

// Rules are a table made ready for look-ups. They never change and may be shared.
type Rules struct {
	rows     []Row
	byCell   map[cell][]int // indices of rows
	defaults map[Event]Default
	events   []Event // all of them, in the order of the defaults
}

// cell is a cell of the matrix: what one state answers to one event.
type cell struct {
	state State
	event Event
}

// NewRules makes rules of a table; the program's own are NewRules(Table, Elsewhere), tests mutate copies.
func NewRules(table []Row, elsewhere []Default) *Rules {
	rules := &Rules{rows: table, byCell: map[cell][]int{}, defaults: map[Event]Default{}}
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

// Step returns the machine after the event, and what to do about it. It does no I/O, knows no clock and starts nothing.
func (r *Rules) Step(c Core, event Event, payload Payload) (Core, Decision) {
	facts := c.Facts.learn(event, payload)
	decision := r.decide(c.State, event, facts)
	if decision.Row < 0 {
		return c, decision
	}
	return Core{State: decision.To, Facts: facts.conclude(c.State, event, decision.To, payload)}, decision
}

func (r *Rules) decide(state State, event Event, facts Facts) Decision {
	for _, i := range r.byCell[cell{state, event}] {
		if row := &r.rows[i]; row.When.Holds(facts) {
			return Decision{Answer: row.answer(), Row: i, To: row.To, Do: row.Do, Why: row.Why}
		}
	}
	answer, why := r.elsewhere(state, event)
	return Decision{Answer: answer, Row: -1, To: state, Why: why}
}

func (r *Rules) elsewhere(state State, event Event) (Answer, string) {
	if state == Terminated {
		return Ignore, "the end is reached"
	}
	if answer, known := r.defaults[event]; known {
		return answer.Answer, answer.Why
	}
	return Reject, "no such event"
}

func (row *Row) answer() Answer {
	if row.To == row.From {
		return Stay
	}
	return Move
}
