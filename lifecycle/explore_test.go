package lifecycle_test

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/exitcode"
	. "etcd-wrapper/lifecycle"
	"etcd-wrapper/statemachine"
)

// truth is the actual state of the world, which may differ from what the machine knows. The exploration starts from
// the worst case: a clean record on the volume.
type truth struct {
	locked    bool                           // the volume is locked
	word      bootstrap.InitializationStatus // newest status read
	recorded  bool                           // whether the volume has a clean record
	removed   bool                           // whether this process has removed the record
	opened    bool                           // etcd was opened
	closed    bool                           // closing etcd has returned
	triggered bool                           // whether an initialization was requested after the last Successful
	failed    bool                           // whether the last result was Failed
	usable    bool                           // whether the newest prefetched configuration is usable
	another   bool                           // whether another process had the data open for writing
}

// A place is the state of the machine and the truth while a blocking action is running.
type place struct {
	core  Core
	truth truth
	chain string // actions of the current task, joined to make places comparable
	at    int    // index of the current action
	timer bool   // the timer is running
	aside bool   // whether a prefetch is in progress
}

// An outcome is a possible result of an action. If an outcome has no event, the next action runs.
type outcome struct {
	happening
	after func(truth) truth
}

// outcomes returns all possible results of an action, given the truth.
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
		return append(hints(), ends(NoAnswer, Payload{}))
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
		return settles(func(t *truth) { t.recorded = !t.another && (t.recorded || t.removed) })
	case WriteRecord:
		return settles(func(t *truth) { t.recorded = !t.another })
	case LeaveReason:
		return settles(func(*truth) {})
	case RefreshConfig, EndPrefetch, PaceProgress, PaceFailure, PaceSilence, PaceLock, LimitStart, LimitAbort, LimitStop: // actions that return immediately
	}
	return nil
}

// unknownWord is a status that no current sidecar returns.
const unknownWord bootstrap.InitializationStatus = "WordOfALaterSidecar"

func hints() []outcome {
	var all []outcome
	all = append(all, outcome{happening{Replied, Payload{Word: bootstrap.Failed, Status: exitcode.EtcdFailed}}, func(t truth) truth {
		t.word, t.triggered, t.usable, t.failed = bootstrap.Failed, false, false, true
		return t
	}})
	for _, word := range append(declared[bootstrap.InitializationStatus](), unknownWord) {
		for _, usable := range []bool{false, true} {
			all = append(all, outcome{happening{Replied, Payload{Word: word, Early: usable}}, func(t truth) truth {
				t.word, t.triggered, t.usable = word, false, usable
				t.failed = word == bootstrap.Failed || t.failed && word != bootstrap.Successful
				return t
			}})
			if word != bootstrap.Successful {
				break // useless without that result
			}
		}
	}
	return all
}

func prefetches() []outcome {
	var all []outcome
	for _, usable := range []bool{false, true} {
		all = append(all, outcome{happening{ConfigPrefetched, Payload{Early: usable}}, func(t truth) truth {
			t.usable = usable
			return t
		}})
	}
	return all
}

// intrusion means that another process has the data open for writing, which invalidates the record immediately.
var intrusion = outcome{happening{DataInUse, Payload{}}, func(t truth) truth {
	t.another, t.recorded = true, false
	return t
}}

// closes returns all possible results of closing etcd. If etcd was never opened, there is nothing to close.
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

// begins applies the effects of starting an action.
func begins(action Action, t truth) truth {
	if action == OpenEtcd {
		t.opened = true
	}
	if action == AskInit || action == AskFullInit {
		t.triggered = true
	}
	return t
}

// anytime lists the events that can occur in any state.
var anytime = []happening{
	{Signal, Payload{Signal: syscall.SIGTERM}},
	{Signal, Payload{Signal: syscall.SIGINT}},
	{StopPosted, Payload{}},
	{Crashed, Payload{}},
	{ListenerLost, Payload{Status: exitcode.ServerTaken}},
}

// timers lists the actions that set the timer. LimitStart sets none if --etcd-ready-timeout is 0.
var timers = slices.DeleteFunc(declared[Action](), func(a Action) bool { return !SetsTimer(a) })

// split separates the quick actions and the prefetch actions from the other actions of a row.
func split(do []Action) (slow []Action, timer bool, aside Action) {
	for _, action := range do {
		switch {
		case slices.Contains(timers, action):
			timer = true
		case IsBeside(action):
			aside = action
		default:
			slow = append(slow, action)
		}
	}
	return slow, timer, aside
}

// promises are the invariants.
var promises = []struct {
	what string
	kept func(place, truth, Facts) bool
}{
	{"I1: etcd is opened only after Successful was read", func(p place, t truth, _ Facts) bool {
		return p.action() != OpenEtcd || t.word == bootstrap.Successful && !t.triggered
	}},
	{"I1: a configuration that came early is checked only after Successful was read", func(p place, t truth, _ Facts) bool {
		return p.action() != CheckEtcdConfig || t.word == bootstrap.Successful && !t.triggered
	}},
	{"I9: a configuration is checked only if it was asked for after the result, or shortly before it and nothing can have changed it", func(p place, t truth, _ Facts) bool {
		return p.action() != CheckEtcdConfig || t.usable
	}},
	{"I9: no early configuration comes once one was chosen", func(p place, _ truth, _ Facts) bool {
		return !p.aside || !slices.Contains([]Action{CheckEtcdConfig, ServeReadyz, LockData, RemoveRecord, OpenEtcd}, p.action())
	}},
	{"R8: once somebody else had the data open for writing, no clean record comes back", func(_ place, t truth, _ Facts) bool {
		return !t.another || !t.recorded
	}},
	{"after Failed the next initialization is full", func(p place, t truth, _ Facts) bool {
		return p.action() != AskInit || !t.failed
	}},
	{"I2: a clean record means that the last etcd was closed", func(_ place, t truth, _ Facts) bool {
		return !t.recorded || !t.opened || t.closed
	}},
	{"I3: no initialization while an etcd may hold the data", func(p place, t truth, _ Facts) bool {
		return !asksInit(p) || !t.opened
	}},
	{"I3: nothing is asked without the volume's lock", func(p place, t truth, _ Facts) bool {
		return !asksInit(p) && p.action() != AskStatus || t.locked
	}},
	{"I4: a stop has a budget", func(p place, _ truth, f Facts) bool {
		return f.Ending == "" || p.core.State == Terminated || p.timer
	}},
	{"I4: whatever a state waits for ends, or its job is to go on", func(p place, _ truth, _ Facts) bool { return holdsBound(p) }},
	{"I5: nothing is served again after the end has begun", func(p place, _ truth, f Facts) bool {
		return f.Ending == "" || p.core.State == Terminating || p.core.State == Terminated
	}},
	{"I5: Serving means that etcd was opened", func(p place, t truth, _ Facts) bool { return p.core.State != Serving || t.opened }},
	{"I6: status 0 only for a stop that was asked for", func(p place, _ truth, f Facts) bool {
		return !endedClean(p) || f.Ending == Signal || f.Ending == StopPosted
	}},
	{"I6: status 0 only if etcd was closed or never opened", func(p place, t truth, _ Facts) bool {
		return !endedClean(p) || !t.opened || t.closed
	}},
	{"R4, R5, R8: status 0 means that the record is clean, unless somebody else had the data open for writing", func(p place, t truth, _ Facts) bool {
		return !endedClean(p) || t.recorded != t.another
	}},
	{"R1: a run that failed leaves no record once etcd was opened", func(p place, t truth, f Facts) bool {
		failed := f.Ending != "" && f.Ending != Signal && f.Ending != StopPosted
		return p.core.State != Terminated || !failed || !t.opened || !t.recorded
	}},
}

// holdsBound checks that every visit to a state is bounded as declared.
func holdsBound(p place) bool {
	switch boundOf(p.core.State) {
	case statemachine.ByTimer:
		return p.timer
	case statemachine.ByCalls, statemachine.NoBound:
		return p.timer || p.chain != ""
	case statemachine.AtEnd:
		return !p.timer
	}
	return false
}

func asksInit(p place) bool { return p.action() == AskInit || p.action() == AskFullInit }

func endedClean(p place) bool {
	return p.core.State == Terminated && p.core.Facts.Status == exitcode.Clean
}

// An explorer visits all reachable places breadth-first and collects violations.
type explorer struct {
	rules *Rules
	from  map[place]arrival
	queue []place
	wrong []string
}

// arrival records how a place was first reached.
type arrival struct {
	before place
	by     Event
}

// explore explores the whole table but stops after a violation.
func explore() *explorer {
	root := place{core: NewCore(), truth: truth{recorded: true}}
	e := &explorer{rules: NewRules(Table, Elsewhere), from: map[place]arrival{root: {before: root}}}
	e.take(root, root, happening{Started, Payload{}})
	for len(e.queue) > 0 && len(e.wrong) == 0 {
		here := e.queue[0]
		e.queue = e.queue[1:]
		e.expand(here)
	}
	return e
}

// expand adds all places that can come next.
func (e *explorer) expand(here place) {
	e.check(here)
	if here.core.State == Terminated {
		return
	}
	if action := here.action(); action != "" && len(outcomes(action, here.truth)) == 0 {
		e.blame(fmt.Sprintf("action %q has no outcome: say how it can end, in outcomes", action), here)
	}
	for _, h := range anytime {
		e.take(here, here, h)
		// A cancelled action may still complete.
		for _, o := range outcomes(here.action(), here.truth) {
			next := here
			next.truth = o.after(here.truth)
			e.take(here, next, h)
		}
	}
	if here.timer {
		e.take(here, here, happening{Elapsed, Payload{}})
	}
	for _, o := range outcomes(here.action(), here.truth) {
		e.end(here, o)
	}
	if here.aside {
		for _, o := range outcomes(PrefetchConfig, here.truth) {
			next := here
			next.aside, next.truth = false, o.after(here.truth)
			e.take(here, next, o.happening)
		}
	}
}

// end applies an outcome of the current action.
func (e *explorer) end(here place, o outcome) {
	next := here
	next.truth = o.after(here.truth)
	if o.event != "" {
		next.chain, next.at = "", 0
		e.take(here, next, o.happening)
		return
	}
	next.at++
	if next.action() == "" {
		e.blame("work ends without an event", here)
		return
	}
	next.truth = begins(next.action(), next.truth)
	e.find(next, arrival{here, ""})
}

// take applies an event to a place.
func (e *explorer) take(found, here place, h happening) {
	core, decision := e.rules.Step(here.core, h.event, h.payload)
	if decision.Answer == statemachine.Reject {
		e.blame(fmt.Sprintf("%q is rejected, but it does come", h.event), found)
	}
	if decision.Row < 0 {
		return
	}
	next := here
	next.core = core
	slow, timer, aside := split(decision.Do)
	if decision.Answer == statemachine.Move {
		next.timer, next.chain, next.at = false, "", 0
	}
	next.timer = next.timer || timer
	next.aside = (next.aside || aside == PrefetchConfig || aside == RefreshConfig) && aside != EndPrefetch && core.Facts.Ending == ""
	if len(slow) > 0 {
		next.chain, next.at = join(slow), 0
		next.truth = begins(slow[0], next.truth)
	}
	e.find(next.bounded(), arrival{found, h.event})
}

// way returns the path to a place.
func (e *explorer) way(p place) string {
	from := e.from[p]
	if from.before == p {
		return string(p.core.State)
	}
	return fmt.Sprintf("%s > %s = %s", e.way(from.before), from.by, p.core.State)
}

func (e *explorer) blame(what string, p place) {
	e.wrong = append(e.wrong, what+": "+e.way(p))
}

// bounded limits the number of places by dropping details that no guard depends on: signals beyond the second, and,
// during a shutdown, facts from before the start of etcd.
func (p place) bounded() place {
	facts := &p.core.Facts
	facts.Signals = min(facts.Signals, 2)
	if facts.Ending != "" && !facts.Permanent {
		facts.Failed, facts.RequestPending, facts.ConfigKept, facts.Word = false, false, false, ""
		p.truth.failed, p.truth.usable, p.truth.word, p.truth.triggered = false, false, "", false
	}
	return p
}

func (e *explorer) find(p place, from arrival) {
	if _, known := e.from[p]; !known {
		e.from[p] = from
		e.queue = append(e.queue, p)
	}
}

func (p place) action() Action {
	if actions := strings.Split(p.chain, "|"); p.at < len(actions) {
		return Action(actions[p.at])
	}
	return ""
}

func join(actions []Action) string {
	names := make([]string, len(actions))
	for i, action := range actions {
		names[i] = string(action)
	}
	return strings.Join(names, "|")
}

// check checks the invariants in a place.
func (e *explorer) check(p place) {
	for _, promise := range promises {
		if !promise.kept(p, p.truth, p.core.Facts) {
			e.blame("broken: "+promise.what, p)
		}
	}
}

func TestInvariants_inEveryReachableState(t *testing.T) {
	found := explored(t)
	states, rows := map[State]bool{}, len(Table)
	for p := range found.from {
		states[p.core.State] = true
	}
	assert.Len(t, states, len(States), "every state was visited")
	t.Logf("explored %d places of %d states and %d rows", len(found.from), len(states), rows)
}

// At most one guard may hold for a state and an event, so that the order of guarded rows does not matter.
func TestGuards_areExclusive(t *testing.T) {
	for p := range explored(t).from {
		holding := map[Event]int{}
		for _, row := range Table {
			if row.From == p.core.State && row.When != Always && p.core.Facts.Holds(row.When) {
				holding[row.On]++
			}
		}
		for event, count := range holding {
			assert.Equal(t, 1, count, "%s, %s, knowing %+v", p.core.State, event, p.core.Facts)
		}
	}
}
