package lifecycle

import "slices"

// Source is where a row of the table may start: a State, or a Group of them.
type Source interface{ Each() []State }

// Each returns the state alone.
func (s State) Each() []State { return []State{s} }

// Group is states for which the same row is right.
type Group []State

// Each returns the states of the group, in the order of a run.
func (g Group) Each() []State { return g }

// The groups. Every state but the two of the end is either BeforeEtcd or WithEtcd.
var (
	// BeforeVerdict is where this process has not read a verdict on the data yet.
	BeforeVerdict = Group{Query, Trigger, Wait}
	// BeforeEtcd is where nothing of etcd runs yet: a stop has nothing to close and leaves the exit record as it was.
	BeforeEtcd = append(slices.Clone(BeforeVerdict), FetchConfig)
	// WithEtcd is where an etcd may hold the data.
	WithEtcd = Group{StartEtcd, Serving}
	// BeforeEnd is where the end has not begun.
	BeforeEnd = slices.Concat(BeforeEtcd, WithEtcd)
)

// stays in the place of To is the state that the row starts from, whichever of a group it is.
const stays State = ""

// entry is a row as it is written: it may start in a group.
type entry struct {
	From Source
	On   Event
	When Guard
	To   State
	Do   []Action
	Why  string
}

// expand writes a row for every state of a group, so that whoever looks at the table sees each state by itself.
func expand(entries []entry) []Row {
	var table []Row
	for _, e := range entries {
		for _, from := range e.From.Each() {
			table = append(table, e.row(from))
		}
	}
	return table
}

func (e entry) row(from State) Row {
	row := Row{From: from, On: e.On, When: e.When, To: e.To, Do: e.Do, Why: e.Why}
	if row.To == stays {
		row.To = from
	}
	return row
}
