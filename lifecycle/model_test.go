package lifecycle_test

import (
	"slices"
	"syscall"
	"time"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/exitcode"
	. "etcd-wrapper/lifecycle"
)

// truth is what is really the case in the world, whatever the machine believes. Booleans start at the worst case: a
// clean record is found on the volume.
type truth struct {
	locked    bool                           // the volume's lock is held
	word      bootstrap.InitializationStatus // the newest word that was read
	recorded  bool                           // a clean record is on the volume
	removed   bool                           // this process removed it
	opened    bool                           // etcd was opened
	closed    bool                           // its close returned
	triggered bool                           // an initialization was asked for after the newest Successful
	failed    bool                           // the newest verdict was Failed
	usable    bool                           // the newest configuration may be used after this verdict
	stranger  bool                           // somebody else was seen to have the data open for writing
}

// place is the machine and its world at one instant: a row's blocking actions are done up to the one at hand.
type place struct {
	core  Core
	truth truth
	chain string // the actions of the work in hand, joined; comparable
	at    int    // the action at hand
	timer bool   // the visit's timer is set
	aside bool   // the prefetch is under way
}

// outcome is one way in which an action can end. Without an event the next action follows.
type outcome struct {
	happening
	after func(truth) truth
}

// outcomes are all the ways in which an action can end, given what is true.
func outcomes(action Action, now truth) []outcome {
	same := func(t truth) truth { return t }
	next := func(change func(*truth)) outcome {
		return outcome{after: func(t truth) truth { change(&t); return t }}
	}
	ends := func(event Event, payload Payload) outcome { return outcome{happening{event, payload}, same} }
	switch action {
	case LockVolume:
		return []outcome{next(func(t *truth) { t.locked = true }), ends(VolumeBusy, Payload{})}
	case AskStatus:
		return append(words(), ends(NoAnswer, Payload{}))
	case ProbeData:
		return []outcome{intrusion, next(func(*truth) {}), ends(NotAccepted, Payload{})}
	case AskInit, AskFullInit:
		return []outcome{ends(Accepted, Payload{}), ends(NotAccepted, Payload{})}
	case FetchEtcdConfig:
		fetched := ends(ConfigFetched, Payload{Config: some})
		fetched.after = func(t truth) truth { t.usable = true; return t }
		return []outcome{fetched, ends(ConfigUnavailable, Payload{})}
	case PrefetchConfig:
		return prefetches()
	case CheckEtcdConfig:
		return []outcome{next(func(*truth) {}), ends(ConfigUnavailable, Payload{}), ends(ConfigInvalid, Payload{Status: exitcode.BadConfig})}
	case ServeReadyz:
		return []outcome{next(func(*truth) {}), ends(ConfigUnavailable, Payload{}), ends(ConfigInvalid, Payload{Status: exitcode.ServerTaken})}
	case LockData:
		return []outcome{intrusion, ends(ConfigValid, Payload{})}
	case RemoveRecord:
		removed := next(func(t *truth) { t.recorded, t.removed = false, t.removed || t.recorded })
		return []outcome{removed, ends(EtcdFailed, Payload{Status: exitcode.BadRecord})}
	case OpenEtcd:
		return []outcome{ends(EtcdReady, Payload{}), ends(EtcdFailed, Payload{Status: exitcode.EtcdFailed})}
	case WatchEtcd:
		return []outcome{ends(EtcdFailed, Payload{Status: exitcode.EtcdFailed})}
	case CloseEtcd:
		return closes(now)
	case RestoreRecord:
		return settles(func(t *truth) { t.recorded = !t.stranger && (t.recorded || t.removed) })
	case WriteRecord:
		return settles(func(t *truth) { t.recorded = !t.stranger })
	case LeaveReason:
		return settles(func(*truth) {})
	case RefreshConfig, EndPrefetch, PaceProgress, PaceFailure, PaceSilence, PaceLock, LimitStart, LimitAbort, LimitStop: // they end at once
	}
	return nil
}

// unknownWord is one that no release of the sidecar says so far.
const unknownWord bootstrap.InitializationStatus = "WordOfALaterSidecar"

func words() []outcome {
	var all []outcome
	all = append(all, outcome{happening{Replied, Payload{Word: bootstrap.Failed, Status: exitcode.EtcdFailed}}, func(t truth) truth {
		t.word, t.triggered, t.usable, t.failed = bootstrap.Failed, false, false, true
		return t
	}})
	for _, word := range append(declared[bootstrap.InitializationStatus](), unknownWord) {
		for _, e := range earlies {
			all = append(all, outcome{happening{Replied, Payload{Word: word, Early: e.early}}, func(t truth) truth {
				t.word, t.triggered, t.usable = word, false, e.usable
				t.failed = word == bootstrap.Failed || t.failed && word != bootstrap.Successful
				return t
			}})
			if word != bootstrap.Successful {
				break // without that verdict it is worth nothing
			}
		}
	}
	return all
}

// earlies are early configurations on both sides of every border, and whether etcd may run with them.
var earlies = []struct {
	early  Early
	usable bool
}{
	{Early{}, false},
	{Early{Here: true, Alone: true, Age: 10 * time.Second}, true},
	{Early{Here: true, Alone: true, Age: 10*time.Second + 1}, false},
	{Early{Here: true, Log: true, Age: time.Minute}, true},
	{Early{Here: true, Log: true, Age: time.Minute + 1}, false},
	{Early{Here: true}, false},
	{Early{Alone: true, Log: true}, false},
}

func prefetches() []outcome {
	var all []outcome
	for _, e := range earlies {
		all = append(all, outcome{happening{ConfigPrefetched, Payload{Early: e.early}}, func(t truth) truth {
			t.usable = e.usable
			return t
		}})
	}
	return all
}

// intrusion is to find that somebody else has the data open for writing. The record goes at once.
var intrusion = outcome{happening{DataInUse, Payload{}}, func(t truth) truth {
	t.stranger, t.recorded = true, false
	return t
}}

// closes are the ways in which a close can end: an etcd that was never opened has nothing to close.
func closes(now truth) []outcome {
	if !now.opened {
		return []outcome{{happening{EtcdClosed, Payload{NeverOpened: true}}, func(t truth) truth { return t }}}
	}
	return []outcome{
		{happening{EtcdClosed, Payload{ClosedInOrder: true}}, func(t truth) truth { t.closed = true; return t }},
		{happening{EtcdClosed, Payload{Status: exitcode.EtcdFailed}}, func(t truth) truth { return t }},
	}
}

func settles(change func(*truth)) []outcome {
	return []outcome{
		{happening{RecordSettled, Payload{}}, func(t truth) truth { change(&t); return t }},
		{happening{RecordSettled, Payload{Status: exitcode.BadRecord}}, func(t truth) truth { return t }},
	}
}

// begins is what becomes true in the instant in which an action starts.
func begins(action Action, t truth) truth {
	if action == OpenEtcd {
		t.opened = true
	}
	if action == AskInit || action == AskFullInit {
		t.triggered = true
	}
	return t
}

// anytime is what can happen whatever the machine does.
var anytime = []happening{
	{Signal, Payload{Signal: syscall.SIGTERM}},
	{Signal, Payload{Signal: syscall.SIGINT}},
	{StopPosted, Payload{}},
	{Crashed, Payload{}},
	{ListenerLost, Payload{Status: exitcode.ServerTaken}},
}

// timers are the actions that set the visit's timer; --etcd-ready-timeout may be 0, so that one may be set or not.
var timers = slices.DeleteFunc(declared[Action](), func(a Action) bool { return !SetsTimer(a) })

// split takes the quick actions and those about the early fetch out of a row.
func split(do []Action) (slow []Action, timer bool, aside Action) {
	for _, action := range do {
		switch {
		case slices.Contains(timers, action):
			timer = true
		case IsAside(action):
			aside = action
		default:
			slow = append(slow, action)
		}
	}
	return slow, timer, aside
}
