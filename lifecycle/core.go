package lifecycle

import (
	"syscall"
	"time"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/exitcode"
	"etcd-wrapper/statemachine"
)

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
	// StateInfo describes a state to people.
	StateInfo = statemachine.StateInfo
	// Bound is what ends a visit to a state.
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

// Payload is what comes with an event. The zero value is nothing.
type Payload struct {
	Word          bootstrap.InitializationStatus // with Replied: what the sidecar said
	Early         EarlyConfig                    // with Replied and ConfigPrefetched: the newest early configuration
	Config        []byte                         // with ConfigPrefetched and ConfigFetched: the configuration
	Asked         time.Time                      // with ConfigPrefetched: when it was asked for
	Logs          []string                       // with Replied and Accepted: the logs on the volume at that moment
	Signal        syscall.Signal                 // with Signal: which
	NeverOpened   bool                           // with EtcdClosed: etcd never touched the data in this process
	ClosedInOrder bool                           // with EtcdClosed: etcd was opened, and its close returned
	Status        exitcode.Code                  // the exit status this event asks for, if the run ends because of it
	Validation    Validation                     // with Accepted and NotAccepted: what was asked for
	Err           error                          // what went wrong, for people
	Detail        string                         // what there is to know, for people
}

// Facts is what the guards may ask about, and the exit status that has built up. The zero value is a process that has
// just started.
type Facts struct {
	Word           bootstrap.InitializationStatus // the sidecar's last word
	Failed         bool                           // the last result was Failed
	Permanent      bool                           // no further try can change that result
	RequestPending bool                           // an initialization was accepted and no result came since
	ConfigKept     bool                           // an early configuration is here that may be used after this result
	NeverOpened    bool                           // as Payload.NeverOpened
	ClosedInOrder  bool                           // as Payload.ClosedInOrder
	Signals        int                            // signals so far, this event included
	LastSignal     syscall.Signal                 // the latest of them
	Ending         Event                          // what led into Terminating; empty before
	Status         exitcode.Code                  // what the process will exit with; the first trouble decides
}

// Holds reports whether the guard's condition is true. An unknown guard never holds.
func (f Facts) Holds(g Guard) bool {
	switch g {
	case Always:
		return true
	case StatusNew:
		return f.Word == bootstrap.New && !f.Failed
	case NewAfterFailed:
		return f.Word == bootstrap.New && f.Failed
	case StatusProgress:
		return f.Word.Running()
	case StatusSuccessful:
		return f.Word == bootstrap.Successful
	case ConfigKept:
		return f.Word == bootstrap.Successful && f.ConfigKept
	case StatusFailed:
		return f.Word == bootstrap.Failed && !f.Permanent
	case FailedPermanently:
		return f.Word == bootstrap.Failed && f.Permanent
	case RequestRepeated:
		return f.RequestPending
	case NeverOpened:
		return f.NeverOpened
	case CleanStop:
		return f.ClosedInOrder && (f.Ending == Signal || f.Ending == StopPosted)
	case SecondSignal:
		return f.Signals > 1
	}
	return false
}

// Learn adds what comes with an event to the facts, before the table is asked.
func (f Facts) Learn(event Event, payload Payload) Facts {
	switch event {
	case Replied:
		f = f.withWord(payload.Word)
		f.ConfigKept = payload.Early.isUsable()
		f.Permanent = payload.Status != exitcode.Clean
	case ConfigPrefetched:
		f.ConfigKept = payload.Early.isUsable()
	case Signal:
		f.Signals++
		f.LastSignal = payload.Signal
	case EtcdClosed:
		f.NeverOpened, f.ClosedInOrder = payload.NeverOpened, payload.ClosedInOrder
	case Started, VolumeBusy, NoAnswer, Accepted, NotAccepted, DataInUse, ConfigFetched, ConfigValid, ConfigInvalid, ConfigUnavailable,
		EtcdReady, EtcdFailed, RecordSettled, Elapsed, Crashed, StopPosted, ListenerLost: // no facts come with them
	}
	return f
}

// hear keeps the sidecar's word, and what follows from a result.
func (f Facts) withWord(word bootstrap.InitializationStatus) Facts {
	f.Word = word
	if word.Result() {
		f.Failed, f.RequestPending = word == bootstrap.Failed, false
	}
	return f
}

// Conclude adds to the facts what follows from the answer: what was asked for, why the run ends, and with which status.
func (f Facts) Conclude(from State, event Event, to State, payload Payload) Facts {
	f.RequestPending = f.RequestPending || event == Accepted
	if to == Terminating && from != Terminating {
		f.Ending = event
	}
	if f.Ending != "" && f.Status == exitcode.Clean {
		f.Status = f.statusOf(from, event, to, payload)
	}
	return f
}

// statusOf is the exit status that one event of the ending asks for.
func (f Facts) statusOf(from State, event Event, to State, payload Payload) exitcode.Code {
	switch {
	case event == Crashed:
		return exitcode.Crashed
	case event == Elapsed && from == StartEtcd:
		return exitcode.NotReady
	case event == Elapsed:
		return exitcode.OutOfTime
	case event == Signal && to == Terminated:
		return exitcode.Forced(f.LastSignal)
	default:
		return payload.Status
	}
}

// RecordWord is the word that a clean stop leaves in the exit record.
func (f Facts) RecordWord() exitcode.Word {
	if f.Ending == Signal && f.LastSignal == syscall.SIGINT {
		return exitcode.Interrupted
	}
	return exitcode.Terminated
}
