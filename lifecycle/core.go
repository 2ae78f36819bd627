package lifecycle

import "etcd-wrapper/lifecycle/machine"

type (
	// State is a documented phase of the lifecycle.
	State = machine.State
	// Event is something that happened outside the machine and that it must answer.
	Event = machine.Event
	// Guard is the name of a condition over the Facts.
	Guard = machine.Guard
	// Action is the name of something that the driver does.
	Action = machine.Action
	// Answer is what the machine does with an event.
	Answer = machine.Answer
	// Row is one transition.
	Row = machine.Row
	// Default is the answer to an event in every state that has no row for it.
	Default = machine.Default
	// Source is where a row of the table may start: a State, or a Group of them.
	Source = machine.Source
	// Group is states for which the same row is right.
	Group = machine.Group
	// StateInfo is what people are told about a state.
	StateInfo = machine.StateInfo
	// Bound is what keeps a visit to a state from lasting for ever.
	Bound = machine.Bound
	// Decision is the answer to one event.
	Decision = machine.Decision
	// Core is the pure machine between two events: a state and the facts known in it.
	Core = machine.Core[Facts]
	// Rules are the table made ready for look-ups. They never change and may be shared.
	Rules = machine.Rules[Facts, Payload]
)

// Words of every machine that the lifecycle's table needs: the guard of the last row for a state and an event, the answers,
// and what bounds a visit to a state.
const (
	Always = machine.Always

	Move   = machine.Move
	Stay   = machine.Stay
	Ignore = machine.Ignore
	Reject = machine.Reject

	ByTimer = machine.ByTimer
	ByCalls = machine.ByCalls
	NoBound = machine.NoBound
	AtEnd   = machine.AtEnd
)

// NewCore returns the machine as a process starts it.
func NewCore() Core { return Core{State: Query} }

// NewRules makes rules of a table; the program's own are NewRules(Table, Elsewhere), tests mutate copies.
func NewRules(table []Row, elsewhere []Default) *Rules {
	return machine.NewRules[Facts](table, elsewhere, Terminated)
}
