package lifecycle

import "etcd-wrapper/statemachine"

type (
	// State is a documented phase of the lifecycle.
	State = statemachine.State
	// Event is something that happened outside the machine and that it must answer.
	Event = statemachine.Event
	// Guard is the name of a condition over the Facts.
	Guard = statemachine.Guard
	// Action is the name of something that the driver does.
	Action = statemachine.Action
	// Answer is what the machine does with an event.
	Answer = statemachine.Answer
	// Row is one transition.
	Row = statemachine.Row
	// Default is the answer to an event in every state that has no row for it.
	Default = statemachine.Default
	// Source is where a row of the table may start: a State, or a Group of them.
	Source = statemachine.Source
	// Group is states for which the same row is right.
	Group = statemachine.Group
	// StateInfo is what people are told about a state.
	StateInfo = statemachine.StateInfo
	// Bound is what keeps a visit to a state from lasting for ever.
	Bound = statemachine.Bound
	// Decision is the answer to one event.
	Decision = statemachine.Decision
	// Core is the pure machine between two events: a state and the facts known in it.
	Core = statemachine.Core[Facts]
	// Rules are the table made ready for look-ups. They never change and may be shared.
	Rules = statemachine.Rules[Facts, Payload]
)

// Words of every machine that the lifecycle's table needs: the guard of the last row for a state and an event, the answers,
// and what bounds a visit to a state.
const (
	Always = statemachine.Always

	Move   = statemachine.Move
	Stay   = statemachine.Stay
	Ignore = statemachine.Ignore
	Reject = statemachine.Reject

	ByTimer = statemachine.ByTimer
	ByCalls = statemachine.ByCalls
	NoBound = statemachine.NoBound
	AtEnd   = statemachine.AtEnd
)

// NewCore returns the machine as a process starts it.
func NewCore() Core { return Core{State: Query} }

// NewRules makes rules of a table; the program's own are NewRules(Table, Elsewhere), tests mutate copies.
func NewRules(table []Row, elsewhere []Default) *Rules {
	return statemachine.NewRules[Facts](table, elsewhere, Terminated)
}
