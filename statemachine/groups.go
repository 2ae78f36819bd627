package statemachine

// Source is where a row of a table may start: a State, or a Group of them.
type Source interface{ Each() []State }

// Group is states for which the same row is right.
type Group []State

// Each returns the states of the group, in the order of a run.
func (g Group) Each() []State { return g }

// Stays in the place of To is the state that the row starts from, whichever of a group it is.
const Stays State = ""

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

// Expand writes a row for every state of a group, so that whoever looks at the table sees each state by itself.
func Expand[E Written](entries []E) []Row {
	var table []Row
	for _, e := range entries {
		for _, from := range Entry(e).From.Each() {
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
