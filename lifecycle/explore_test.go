package lifecycle_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	. "etcd-wrapper/lifecycle"
)

// explorer walks every reachable place, breadth first, and collects what is wrong anywhere.
type explorer struct {
	rules *Rules
	from  map[place]arrival
	queue []place
	wrong []string
}

// arrival is how a place was first found.
type arrival struct {
	before place
	by     Event
}

// explore walks a table to the fixpoint. It stops early once something is wrong.
func explore(table []Row, elsewhere []Default) *explorer {
	root := place{core: NewCore(), truth: truth{recorded: true}}
	e := &explorer{rules: NewRules(table, elsewhere), from: map[place]arrival{root: {before: root}}}
	e.take(root, root, happening{Begun, Payload{}})
	for len(e.queue) > 0 && len(e.wrong) == 0 {
		here := e.queue[0]
		e.queue = e.queue[1:]
		e.expand(here)
	}
	return e
}

// expand finds everything that can happen next.
func (e *explorer) expand(here place) {
	e.check(here)
	if here.core.State == Terminated {
		return
	}
	for _, h := range anytime {
		e.take(here, here, h)
		// The action at hand may be done all the same by the time it notices that it is cancelled.
		for _, o := range outcomes(here.action(), here.truth) {
			there := here
			there.truth = o.after(here.truth)
			e.take(here, there, h)
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
			there := here
			there.aside, there.truth = false, o.after(here.truth)
			e.take(here, there, o.happening)
		}
	}
}

// end lets the action at hand end in one way.
func (e *explorer) end(here place, o outcome) {
	there := here
	there.truth = o.after(here.truth)
	if o.event != "" {
		there.chain, there.at = "", 0
		e.take(here, there, o.happening)
		return
	}
	there.at++
	if there.action() == "" {
		e.blame("work ends without an event", here)
		return
	}
	there.truth = begins(there.action(), there.truth)
	e.find(there, arrival{here, ""})
}

// take lets something happen in a place that was found, or in what has become of it by then.
func (e *explorer) take(found, here place, h happening) {
	core, decision := e.rules.Step(here.core, h.event, h.payload)
	if decision.Answer == Reject {
		e.blame(fmt.Sprintf("%q is rejected, but it does come", h.event), found)
	}
	if decision.Row < 0 {
		return
	}
	there := here
	there.core = core
	slow, timer, aside := split(decision.Do)
	if decision.Answer == Move {
		there.timer, there.chain, there.at = false, "", 0
	}
	there.timer = there.timer || timer
	there.aside = (there.aside || aside == PrefetchConfig || aside == RefreshConfig) && aside != EndPrefetch && core.Facts.Ending == ""
	if len(slow) > 0 {
		there.chain, there.at = join(slow), 0
		there.truth = begins(slow[0], there.truth)
	}
	e.find(there.bounded(), arrival{found, h.event})
}

// way is how a place was reached, in words.
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

// bounded keeps the places few: guards only ask for more than one signal, and what was known on the way to etcd makes no
// difference to the end.
func (p place) bounded() place {
	facts := &p.core.Facts
	facts.Signals = min(facts.Signals, 2)
	if facts.Ending != "" && !facts.ForGood {
		facts.Failed, facts.InVain, facts.ConfigKept, facts.Word = false, false, false, ""
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

// check holds a place against the promises.
func (e *explorer) check(p place) {
	for _, promise := range promises {
		if !promise.kept(p, p.truth, p.core.Facts) {
			e.blame("broken: "+promise.what, p)
		}
	}
}

func TestEveryPromiseHoldsInEveryReachablePlace(t *testing.T) {
	found := explored(t)
	states, rows := map[State]bool{}, len(Table)
	for p := range found.from {
		states[p.core.State] = true
	}
	assert.Len(t, states, len(States), "every state was visited")
	t.Logf("explored %d places of %d states and %d rows", len(found.from), len(states), rows)
}

// At most one guard of a state and an event holds, so the order of the guarded rows means nothing.
func TestGuardsOfOneStateAndEventExcludeEachOther(t *testing.T) {
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
