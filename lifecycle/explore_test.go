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

// environment is the actual state of the volume, the sidecar and etcd, which may differ from the facts that the
// machine knows. The exploration starts with a clean exit record on the volume.
type environment struct {
	locked        bool                           // whether this process holds the volume lock
	status        bootstrap.InitializationStatus // last status returned by the sidecar
	recorded      bool                           // whether the volume has a clean exit record
	removed       bool                           // whether this process has removed a clean exit record
	opened        bool                           // whether etcd was opened
	closed        bool                           // whether etcd was closed cleanly
	triggered     bool                           // whether an initialization was requested since the last status
	failed        bool                           // whether the last validation result was Failed
	usable        bool                           // whether etcd may run with the newest configuration
	foreignWriter bool                           // whether another process had the data open for writing
}

// A node of the search graph contains the machine, the environment and the blocking action that is running, if any.
type node struct {
	core        Core
	env         environment
	chain       string // blocking actions of the current task, joined into a string because a node is a map key
	at          int    // index of the running action in chain
	timer       bool   // whether the timer is running
	prefetching bool   // whether a prefetch is in progress
}

// An outcome is a possible result of an action. After an outcome without an event, the next action of the task runs.
type outcome struct {
	input
	after func(environment) environment // returns the environment after the action
}

// outcomes returns all possible results of an action in an environment.
func outcomes(action Action, now environment) []outcome {
	same := func(env environment) environment { return env }
	next := func(change func(*environment)) outcome {
		return outcome{after: func(env environment) environment { change(&env); return env }}
	}
	ends := func(event Event, payload Payload) outcome { return outcome{input{event, payload}, same} }
	switch action {
	case LockVolume:
		return []outcome{next(func(env *environment) { env.locked = true }), ends(VolumeBusy, Payload{})}
	case AskStatus:
		return append(statusOutcomes(), ends(NoAnswer, Payload{}))
	case ProbeData:
		return []outcome{foreignWrite, next(func(*environment) {}), ends(NotAccepted, Payload{})}
	case AskInit, AskFullInit:
		return []outcome{ends(Accepted, Payload{}), ends(NotAccepted, Payload{})}
	case FetchEtcdConfig:
		fetched := ends(ConfigFetched, Payload{Config: some})
		fetched.after = func(env environment) environment { env.usable = true; return env }
		return []outcome{fetched, ends(ConfigUnavailable, Payload{})}
	case PrefetchConfig:
		return prefetchOutcomes()
	case CheckEtcdConfig:
		return []outcome{next(func(*environment) {}), ends(ConfigUnavailable, Payload{}), ends(ConfigInvalid, Payload{Status: exitcode.BadConfig})}
	case ServeReadyz:
		return []outcome{next(func(*environment) {}), ends(ConfigUnavailable, Payload{}), ends(ConfigInvalid, Payload{Status: exitcode.ServerTaken})}
	case LockData:
		return []outcome{foreignWrite, ends(ConfigValid, Payload{})}
	case RemoveRecord:
		removed := next(func(env *environment) { env.recorded, env.removed = false, env.removed || env.recorded })
		return []outcome{removed, ends(EtcdFailed, Payload{Status: exitcode.BadRecord})}
	case OpenEtcd:
		return []outcome{ends(EtcdReady, Payload{}), ends(EtcdFailed, Payload{Status: exitcode.EtcdFailed})}
	case WatchEtcd:
		return []outcome{ends(EtcdFailed, Payload{Status: exitcode.EtcdFailed})}
	case CloseEtcd:
		return closeOutcomes(now)
	case RestoreRecord:
		return recordOutcomes(func(env *environment) { env.recorded = !env.foreignWriter && (env.recorded || env.removed) })
	case WriteRecord:
		return recordOutcomes(func(env *environment) { env.recorded = !env.foreignWriter })
	case LeaveReason:
		return recordOutcomes(func(*environment) {})
	case RefreshConfig, EndPrefetch, PaceProgress, PaceFailure, PaceSilence, PaceLock, LimitStart, LimitAbort, LimitStop: // these only set the timer or control the prefetch
	}
	return nil
}

// unknownStatus is a status that no current sidecar returns.
const unknownStatus bootstrap.InitializationStatus = "StatusOfALaterSidecar"

func statusOutcomes() []outcome {
	var all []outcome
	all = append(all, outcome{input{Replied, Payload{Word: bootstrap.Failed, Status: exitcode.EtcdFailed}}, func(env environment) environment {
		env.status, env.triggered, env.usable, env.failed = bootstrap.Failed, false, false, true
		return env
	}})
	for _, word := range append(declared[bootstrap.InitializationStatus](), unknownStatus) {
		for _, usable := range []bool{false, true} {
			all = append(all, outcome{input{Replied, Payload{Word: word, Early: usable}}, func(env environment) environment {
				env.status, env.triggered, env.usable = word, false, usable
				env.failed = word == bootstrap.Failed || env.failed && word != bootstrap.Successful
				return env
			}})
			if word != bootstrap.Successful {
				break // no prefetched configuration is usable before Successful
			}
		}
	}
	return all
}

func prefetchOutcomes() []outcome {
	var all []outcome
	for _, usable := range []bool{false, true} {
		all = append(all, outcome{input{ConfigPrefetched, Payload{Early: usable}}, func(env environment) environment {
			env.usable = usable
			return env
		}})
	}
	return all
}

// foreignWrite is the outcome of an action that finds the data open for writing in another process. The exit record is
// invalidated at once.
var foreignWrite = outcome{input{DataInUse, Payload{}}, func(env environment) environment {
	env.foreignWriter, env.recorded = true, false
	return env
}}

// closes returns all possible results of closing etcd. If etcd was never opened, there is nothing to close.
func closeOutcomes(now environment) []outcome {
	if !now.opened {
		return []outcome{{input{EtcdClosed, Payload{NeverOpened: true}}, func(env environment) environment { return env }}}
	}
	return []outcome{
		{input{EtcdClosed, Payload{ClosedCleanly: true}}, func(env environment) environment { env.closed = true; return env }},
		{input{EtcdClosed, Payload{Status: exitcode.EtcdFailed}}, func(env environment) environment { return env }},
	}
}

func recordOutcomes(change func(*environment)) []outcome {
	return []outcome{
		{input{RecordSettled, Payload{}}, func(env environment) environment { change(&env); return env }},
		{input{RecordSettled, Payload{Status: exitcode.BadRecord}}, func(env environment) environment { return env }},
	}
}

// applyStart returns the environment after an action has started, even if the action never completes.
func applyStart(action Action, env environment) environment {
	if action == OpenEtcd {
		env.opened = true
	}
	if action == AskInit || action == AskFullInit {
		env.triggered = true
	}
	return env
}

// anytimeInputs lists the events that can occur in any state except Terminated.
var anytimeInputs = []input{
	{Signal, Payload{Signal: syscall.SIGTERM}},
	{Signal, Payload{Signal: syscall.SIGINT}},
	{StopPosted, Payload{}},
	{Crashed, Payload{}},
	{ListenerLost, Payload{Status: exitcode.ServerTaken}},
}

// timers lists the actions that set the timer. LimitStart sets none if --etcd-ready-timeout is 0.
var timers = slices.DeleteFunc(declared[Action](), func(a Action) bool { return !SetsTimer(a) })

// split returns the blocking actions of a row, whether the row sets the timer, and its prefetch action, if any.
func split(do []Action) (slow []Action, timer bool, prefetch Action) {
	for _, action := range do {
		switch {
		case slices.Contains(timers, action):
			timer = true
		case IsPrefetchAction(action):
			prefetch = action
		default:
			slow = append(slow, action)
		}
	}
	return slow, timer, prefetch
}

// invariants lists the conditions that must hold in every node. R1 to R8 are rules in docs/design.md.
var invariants = []struct {
	name  string
	holds func(node, environment, Facts) bool
}{
	{"I1: etcd is opened only after the status Successful", func(n node, env environment, _ Facts) bool {
		return n.action() != OpenEtcd || env.status == bootstrap.Successful && !env.triggered
	}},
	{"I1: a configuration is checked only after the status Successful", func(n node, env environment, _ Facts) bool {
		return n.action() != CheckEtcdConfig || env.status == bootstrap.Successful && !env.triggered
	}},
	{"I9: a configuration is checked only if it was requested after the result or is still usable", func(n node, env environment, _ Facts) bool {
		return n.action() != CheckEtcdConfig || env.usable
	}},
	{"I9: no prefetch is in progress after a configuration was chosen", func(n node, _ environment, _ Facts) bool {
		return !n.prefetching || !slices.Contains([]Action{CheckEtcdConfig, ServeReadyz, LockData, RemoveRecord, OpenEtcd}, n.action())
	}},
	{"R8: no clean record is restored or written after another process had the data open for writing", func(_ node, env environment, _ Facts) bool {
		return !env.foreignWriter || !env.recorded
	}},
	{"after Failed, the next initialization is a full one", func(n node, env environment, _ Facts) bool {
		return n.action() != AskInit || !env.failed
	}},
	{"I2: if the record is clean and etcd was opened, etcd was closed cleanly", func(_ node, env environment, _ Facts) bool {
		return !env.recorded || !env.opened || env.closed
	}},
	{"I3: no initialization is requested after etcd was opened", func(n node, env environment, _ Facts) bool {
		return !asksInit(n) || !env.opened
	}},
	{"I3: the sidecar is neither queried nor asked to initialize without the volume lock", func(n node, env environment, _ Facts) bool {
		return !asksInit(n) && n.action() != AskStatus || env.locked
	}},
	{"I4: every stop has a time limit", func(n node, _ environment, f Facts) bool {
		return f.Ending == "" || n.core.State == Terminated || n.timer
	}},
	{"I4: every visit to a state is bounded as the state declares", func(n node, _ environment, _ Facts) bool { return holdsBound(n) }},
	{"I5: a stop is never abandoned", func(n node, _ environment, f Facts) bool {
		return f.Ending == "" || n.core.State == Terminating || n.core.State == Terminated
	}},
	{"I5: etcd was opened before Serving", func(n node, env environment, _ Facts) bool { return n.core.State != Serving || env.opened }},
	{"I6: exit status 0 only after a stop request", func(n node, _ environment, f Facts) bool {
		return !endedClean(n) || f.Ending == Signal || f.Ending == StopPosted
	}},
	{"I6: exit status 0 only if etcd was closed cleanly or never opened", func(n node, env environment, _ Facts) bool {
		return !endedClean(n) || !env.opened || env.closed
	}},
	{"R4, R5, R8: after exit status 0, the record is clean unless another process had the data open for writing", func(n node, env environment, _ Facts) bool {
		return !endedClean(n) || env.recorded != env.foreignWriter
	}},
	{"R1: a failed run leaves no clean record if etcd was opened", func(n node, env environment, f Facts) bool {
		failed := f.Ending != "" && f.Ending != Signal && f.Ending != StopPosted
		return n.core.State != Terminated || !failed || !env.opened || !env.recorded
	}},
}

// holdsBound reports whether a visit to a state is bounded as States declares.
func holdsBound(n node) bool {
	switch boundOf(n.core.State) {
	case statemachine.ByTimer:
		return n.timer
	case statemachine.ByCalls, statemachine.NoBound:
		return n.timer || n.chain != ""
	case statemachine.AtEnd:
		return !n.timer
	}
	return false
}

func asksInit(n node) bool { return n.action() == AskInit || n.action() == AskFullInit }

func endedClean(n node) bool {
	return n.core.State == Terminated && n.core.Facts.Status == exitcode.Clean
}

// An explorer visits all reachable nodes breadth-first and collects violated invariants.
type explorer struct {
	rules      *Rules
	arrivals   map[node]arrival
	queue      []node
	violations []string
}

// arrival records how a node was first reached. The event is empty if only the next action of the task has started.
type arrival struct {
	previous node
	event    Event
}

// explore explores the whole table. It stops early if an invariant is violated.
func explore() *explorer {
	root := node{core: NewCore(), env: environment{recorded: true}}
	e := &explorer{rules: NewRules(Table, Elsewhere), arrivals: map[node]arrival{root: {previous: root}}}
	e.step(root, root, input{Started, Payload{}})
	for len(e.queue) > 0 && len(e.violations) == 0 {
		current := e.queue[0]
		e.queue = e.queue[1:]
		e.expand(current)
	}
	return e
}

// expand checks the invariants in a node and enqueues all nodes that can follow it.
func (e *explorer) expand(current node) {
	e.check(current)
	if current.core.State == Terminated {
		return
	}
	if action := current.action(); action != "" && len(outcomes(action, current.env)) == 0 {
		e.report(fmt.Sprintf("action %q has no outcome: add its possible results to outcomes", action), current)
	}
	for _, in := range anytimeInputs {
		e.step(current, current, in)
		// The running action may have completed just before the event cancelled it.
		for _, o := range outcomes(current.action(), current.env) {
			next := current
			next.env = o.after(current.env)
			e.step(current, next, in)
		}
	}
	if current.timer {
		e.step(current, current, input{Elapsed, Payload{}})
	}
	for _, o := range outcomes(current.action(), current.env) {
		e.complete(current, o)
	}
	if current.prefetching {
		for _, o := range outcomes(PrefetchConfig, current.env) {
			next := current
			next.prefetching, next.env = false, o.after(current.env)
			e.step(current, next, o.input)
		}
	}
}

// complete applies an outcome of the running action.
func (e *explorer) complete(current node, o outcome) {
	next := current
	next.env = o.after(current.env)
	if o.event != "" {
		next.chain, next.at = "", 0
		e.step(current, next, o.input)
		return
	}
	next.at++
	if next.action() == "" {
		e.report("the last action of the task has no event", current)
		return
	}
	next.env = applyStart(next.action(), next.env)
	e.enqueue(next, arrival{current, ""})
}

// step applies an event to current and records that the resulting node was reached from found. The environments of
// found and current can differ: in current, the running action has already completed.
func (e *explorer) step(found, current node, in input) {
	core, decision := e.rules.Step(current.core, in.event, in.payload)
	if decision.Answer == statemachine.Reject {
		e.report(fmt.Sprintf("%q is rejected, although it can occur", in.event), found)
	}
	if decision.Row < 0 {
		return
	}
	next := current
	next.core = core
	slow, timer, prefetch := split(decision.Do)
	if decision.Answer == statemachine.Move {
		next.timer, next.chain, next.at = false, "", 0
	}
	next.timer = next.timer || timer
	next.prefetching = (next.prefetching || prefetch == PrefetchConfig || prefetch == RefreshConfig) && prefetch != EndPrefetch && core.Facts.Ending == ""
	if len(slow) > 0 {
		next.chain, next.at = join(slow), 0
		next.env = applyStart(slow[0], next.env)
	}
	e.enqueue(next.bounded(), arrival{found, in.event})
}

// path returns the events and states that lead to a node.
func (e *explorer) path(n node) string {
	from := e.arrivals[n]
	if from.previous == n {
		return string(n.core.State)
	}
	return fmt.Sprintf("%s > %s = %s", e.path(from.previous), from.event, n.core.State)
}

func (e *explorer) report(what string, n node) {
	e.violations = append(e.violations, what+": "+e.path(n))
}

// bounded limits the number of nodes by dropping details that no guard depends on: signals beyond the second, and,
// during a shutdown, facts from before the start of etcd.
func (n node) bounded() node {
	facts := &n.core.Facts
	facts.Signals = min(facts.Signals, 2)
	if facts.Ending != "" && !facts.Permanent {
		facts.Failed, facts.RequestPending, facts.ConfigKept, facts.Word = false, false, false, ""
		n.env.failed, n.env.usable, n.env.status, n.env.triggered = false, false, "", false
	}
	return n
}

func (e *explorer) enqueue(n node, from arrival) {
	if _, known := e.arrivals[n]; !known {
		e.arrivals[n] = from
		e.queue = append(e.queue, n)
	}
}

func (n node) action() Action {
	if actions := strings.Split(n.chain, "|"); n.at < len(actions) {
		return Action(actions[n.at])
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

// check checks the invariants in a node.
func (e *explorer) check(n node) {
	for _, invariant := range invariants {
		if !invariant.holds(n, n.env, n.core.Facts) {
			e.report("violated: "+invariant.name, n)
		}
	}
}

func TestInvariants_inEveryReachableState(t *testing.T) {
	found := explored(t)
	states, rows := map[State]bool{}, len(Table)
	for n := range found.arrivals {
		states[n.core.State] = true
	}
	assert.Len(t, states, len(States), "every state is reachable")
	t.Logf("explored %d nodes with %d states and %d rows", len(found.arrivals), len(states), rows)
}

// At most one guard may hold for a state and an event, so that the order of guarded rows does not matter.
func TestGuards_areExclusive(t *testing.T) {
	for n := range explored(t).arrivals {
		holding := map[Event]int{}
		for _, row := range Table {
			if row.From == n.core.State && row.When != Always && n.core.Facts.Holds(row.When) {
				holding[row.On]++
			}
		}
		for event, count := range holding {
			assert.Equal(t, 1, count, "%s, %s, facts %+v", n.core.State, event, n.core.Facts)
		}
	}
}
