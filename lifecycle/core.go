package lifecycle

import (
	"syscall"
	"time"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/exitcode"
	"etcd-wrapper/statemachine"
)

type (
	// State names a phase of the lifecycle.
	State = statemachine.State
	// Event names something that happened outside the machine.
	Event = statemachine.Event
	// Guard names a condition over the Facts.
	Guard = statemachine.Guard
	// Action names something that the driver does.
	Action = statemachine.Action
	// Row is one transition.
	Row = statemachine.Row
	// Group is a set of states with the same row.
	Group = statemachine.Group
	// Core is the machine between two events: a state and facts.
	Core = statemachine.Core[Facts]
	// Rules are the table indexed for look-ups.
	Rules = statemachine.Rules[Facts, Payload]
)

// Always is the guard of the last row for a state and an event.
const Always = statemachine.Always

// NewCore returns the machine in its initial state.
func NewCore() Core { return Core{State: Query} }

// Payload carries the details of an event.
type Payload struct {
	Word          bootstrap.InitializationStatus // with Replied: status of the sidecar
	Early         bool                           // with Replied and ConfigPrefetched: the prefetched configuration is usable
	Config        []byte                         // with ConfigPrefetched and ConfigFetched: the configuration
	Asked         time.Time                      // with ConfigPrefetched: when the fetch started
	Logs          []string                       // with Replied and Accepted: logs on the volume at that time
	Signal        syscall.Signal                 // with Signal
	NeverOpened   bool                           // with EtcdClosed: etcd never opened the data in this process
	ClosedInOrder bool                           // with EtcdClosed: etcd was opened and its close has returned
	Status        exitcode.Code                  // exit status if the run ends because of this event
	Validation    Validation                     // with Accepted and NotAccepted: the requested validation
	Err           error                          // cause, for users
	Detail        string                         // further details, for users
}

// Facts hold what the guards depend on, and the exit status so far. The zero value belongs to a process that has just
// started.
type Facts struct {
	Word           bootstrap.InitializationStatus // last status of the sidecar
	Failed         bool                           // the last result was Failed
	Permanent      bool                           // a retry cannot change the result
	RequestPending bool                           // an initialization was accepted and has not returned a result yet
	ConfigKept     bool                           // the prefetched configuration may be used
	NeverOpened    bool                           // see Payload
	ClosedInOrder  bool                           // see Payload
	Signals        int                            // number of signals so far, including this one
	LastSignal     syscall.Signal                 // latest signal
	Ending         Event                          // event that led to Terminating; empty before
	Status         exitcode.Code                  // exit status, which the first failure determines
}

// conditions defines the guards.
var conditions = statemachine.Conditions[Facts]{
	StatusNew:         func(f Facts) bool { return f.Word == bootstrap.New && !f.Failed },
	NewAfterFailed:    func(f Facts) bool { return f.Word == bootstrap.New && f.Failed },
	StatusProgress:    func(f Facts) bool { return f.Word.Running() },
	StatusSuccessful:  func(f Facts) bool { return f.Word == bootstrap.Successful },
	ConfigKept:        func(f Facts) bool { return f.Word == bootstrap.Successful && f.ConfigKept },
	StatusFailed:      func(f Facts) bool { return f.Word == bootstrap.Failed && !f.Permanent },
	FailedPermanently: func(f Facts) bool { return f.Word == bootstrap.Failed && f.Permanent },
	RequestRepeated:   func(f Facts) bool { return f.RequestPending },
	NeverOpened:       func(f Facts) bool { return f.NeverOpened },
	CleanStop:         func(f Facts) bool { return f.ClosedInOrder && (f.Ending == Signal || f.Ending == StopPosted) },
	SecondSignal:      func(f Facts) bool { return f.Signals > 1 },
}

// Holds implements statemachine.Facts.
func (f Facts) Holds(g Guard) bool { return conditions.Evaluate(g, f) }

// Learn implements statemachine.Facts.
func (f Facts) Learn(event Event, payload Payload) Facts {
	switch event {
	case Replied:
		f.Word, f.ConfigKept, f.Permanent = payload.Word, payload.Early, payload.Status != exitcode.Clean
		if f.Word.Result() {
			f.Failed, f.RequestPending = f.Word == bootstrap.Failed, false
		}
	case ConfigPrefetched:
		f.ConfigKept = payload.Early
	case Signal:
		f.Signals++
		f.LastSignal = payload.Signal
	case EtcdClosed:
		f.NeverOpened, f.ClosedInOrder = payload.NeverOpened, payload.ClosedInOrder
	case Started, VolumeBusy, NoAnswer, Accepted, NotAccepted, DataInUse, ConfigFetched, ConfigValid, ConfigInvalid, ConfigUnavailable,
		EtcdReady, EtcdFailed, RecordSettled, Elapsed, Crashed, StopPosted, ListenerLost: // these events carry no facts
	}
	return f
}

// Conclude implements statemachine.Facts. It records why the run ends, and with which status.
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

// statusOf returns the exit status for an event that ends the run.
func (f Facts) statusOf(from State, event Event, to State, payload Payload) exitcode.Code {
	switch {
	case event == Crashed:
		return exitcode.Crashed
	case event == Elapsed && from == StartEtcd:
		return exitcode.NotReady
	case event == Elapsed:
		return exitcode.OutOfTime
	case event == Signal && to == Terminated:
		return exitcode.SecondSignal(f.LastSignal)
	default:
		return payload.Status
	}
}

// RecordWord returns the content of the exit record after a clean stop.
func (f Facts) RecordWord() exitcode.Word {
	if f.Ending == Signal && f.LastSignal == syscall.SIGINT {
		return exitcode.Interrupted
	}
	return exitcode.Terminated
}
