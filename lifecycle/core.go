package lifecycle

import (
	"syscall"
	"time"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/exitcode"
	"etcd-wrapper/statemachine"
)

type (
	// State is a phase of the lifecycle.
	State = statemachine.State
	// Event is something that the state machine reacts to, such as the result of an action or a signal.
	Event = statemachine.Event
	// Guard is a condition on the Facts.
	Guard = statemachine.Guard
	// Action is an operation that the driver performs during a transition.
	Action = statemachine.Action
	// Row is a row of the transition table.
	Row = statemachine.Row
	// Group is a set of states that share a row.
	Group = statemachine.Group
	// Core is the current state of the machine together with the facts.
	Core = statemachine.Core[Facts]
	// Rules is the transition table, indexed by state and event.
	Rules = statemachine.Rules[Facts, Payload]
)

// Always is the guard that always holds. It is the guard of the last row for a state and an event.
const Always = statemachine.Always

// NewCore returns the state machine in its initial state.
func NewCore() Core { return Core{State: Query} }

// Payload contains the details of an event. Most fields are set only by the events listed in their comments.
type Payload struct {
	Word          bootstrap.InitializationStatus // with Replied: the status of the sidecar
	Early         bool                           // with Replied and ConfigPrefetched: whether that configuration is usable
	Config        []byte                         // with ConfigPrefetched and ConfigFetched: the configuration
	Asked         time.Time                      // with ConfigPrefetched: the time of the request
	Logs          []string                       // with Replied and Accepted: the WAL directories on the volume
	Signal        syscall.Signal                 // with Signal: SIGTERM or SIGINT
	NeverOpened   bool                           // with EtcdClosed: whether this process never opened etcd's data
	ClosedCleanly bool                           // with EtcdClosed: whether etcd was opened and then closed cleanly
	Status        exitcode.Code                  // exit status if the event ends the run
	Validation    Validation                     // with Accepted and NotAccepted: the requested validation
	Err           error                          // cause, shown to users
	Detail        string                         // details to show to users
}

// Facts contains everything that the guards depend on, along with the exit status so far. The zero value describes
// a process that has just started.
type Facts struct {
	Word           bootstrap.InitializationStatus // last status of the sidecar
	Failed         bool                           // whether the last result was Failed
	Permanent      bool                           // whether the last status was a failure that ends the run
	RequestPending bool                           // whether an initialization was accepted without a result since
	ConfigKept     bool                           // whether the prefetched configuration is usable
	NeverOpened    bool                           // Payload.NeverOpened of the last EtcdClosed
	ClosedCleanly  bool                           // Payload.ClosedCleanly of the last EtcdClosed
	Signals        int                            // number of signals received so far
	LastSignal     syscall.Signal                 // latest signal
	Ending         Event                          // event that caused the transition to Terminating, or "" before it
	Status         exitcode.Code                  // exit status; once a failure has set it, it does not change
}

// conditions defines when each guard holds.
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
	CleanStop:         func(f Facts) bool { return f.ClosedCleanly && (f.Ending == Signal || f.Ending == StopPosted) },
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
		f.NeverOpened, f.ClosedCleanly = payload.NeverOpened, payload.ClosedCleanly
	case Started, VolumeBusy, NoAnswer, Accepted, NotAccepted, DataInUse, ConfigFetched, ConfigValid, ConfigInvalid, ConfigUnavailable,
		EtcdReady, EtcdFailed, RecordSettled, Elapsed, Crashed, StopPosted, ListenerLost: // events that change no facts
	}
	return f
}

// Conclude implements statemachine.Facts. Conclude records why the run ends and its exit status.
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

// RecordWord returns the content of the exit record to write after a clean stop.
func (f Facts) RecordWord() exitcode.Word {
	if f.Ending == Signal && f.LastSignal == syscall.SIGINT {
		return exitcode.Interrupted
	}
	return exitcode.Terminated
}
