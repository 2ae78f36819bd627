package lifecycle

import "etcd-wrapper/lifecycle/machine"

type (
	// State is a documented phase of the lifecycle. It and what follows are the parts of every machine; see there.
	State     = machine.State
	Event     = machine.Event
	Guard     = machine.Guard
	Action    = machine.Action
	Answer    = machine.Answer
	Row       = machine.Row
	Default   = machine.Default
	Source    = machine.Source
	Group     = machine.Group
	StateInfo = machine.StateInfo
	Bound     = machine.Bound
	Decision  = machine.Decision
	// Core is the pure machine between two events: a state and the facts known in it.
	Core = machine.Core[Facts]
	// Rules are the table made ready for look-ups. They never change and may be shared.
	Rules = machine.Rules[Facts, Payload]
)

// What a machine answers, and the guard of the last row for a state and an event.
const (
	Always = machine.Always
	Move   = machine.Move
	Stay   = machine.Stay
	Ignore = machine.Ignore
	Reject = machine.Reject
)

// What bounds a visit to a state.
const (
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
