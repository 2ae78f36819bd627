package recovery

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/recovery/peers"
	"etcd-wrapper/statemachine"
)

// explorer walks every reachable place and collects what is wrong anywhere.
type explorer struct {
	suite
	seen  map[place]bool
	queue []place
	wrong []string
}

// explore walks a table to the fixpoint from everything that a run can be given. It stops early once something is wrong.
func explore(table []Row, elsewhere []statemachine.Default) *explorer {
	return exploreSuite(suite{NewRules(table, elsewhere), rules})
}

func exploreSuite(all suite) *explorer {
	e := &explorer{suite: all, seen: map[place]bool{}}
	for _, given := range lots() {
		e.find(e.begin(given, origin(given)))
	}
	for len(e.queue) > 0 && len(e.wrong) == 0 {
		here := e.queue[0]
		e.queue = e.queue[1:]
		for _, promise := range promises {
			if !promise.kept(here) {
				e.blame("broken: "+promise.what+" "+here.truth.lost, here)
			}
		}
		e.expand(here)
	}
	return e
}

// begin is a run that begins.
func (e *explorer) begin(given lot, now truth) place {
	now.validated, now.free, now.adopted, now.told, now.uncompared, now.rolled = false, false, false, false, false, now.rolled && now.noted
	return e.take(place{lot: given, truth: now, core: statemachine.Core[Facts]{State: Resume, Facts: Facts{Never: given.never, Store: given.store}}}, Begun, Payload{})
}

func (e *explorer) expand(here place) {
	if here.core.State != Ready {
		e.find(e.begin(here.lot, here.truth)) // a crash, or the next try
	}
	if here.timer {
		e.find(e.take(here, Elapsed, Payload{}))
	}
	if !here.lot.alone && here.truth.noted && !here.truth.claimed && !here.truth.revived && !here.truth.outrun {
		back := here
		back.truth.revived, back.truth.listing = true, peers.Started
		e.find(back)
	}
	for _, there := range e.ends(here) {
		e.find(there)
	}
}

// ends are the places that the action at hand leads to.
func (e *explorer) ends(here place) (all []place) {
	if here.chain == "" {
		return nil
	}
	action, rest, _ := strings.Cut(here.chain, "|")
	if Action(action) == DecideNow {
		there := here
		there.chain = ""
		return []place{e.take(there, decideBy(e.decisions, here.core.Facts.caseOf()).Verdict, Payload{})}
	}
	ways := outcomes(Action(action), here.lot, here.truth)
	if len(ways) == 0 {
		e.blame(fmt.Sprintf("action %q has no outcome: say how it can end, in outcomes", action), here)
	}
	for _, o := range ways {
		there := here
		there.truth, there.chain = o.after, rest
		if o.event != "" {
			there.chain = ""
			if here.core.State == Refused {
				all = append(all, there) // what is tidied up at the end has no further event
				continue
			}
			there = e.take(there, o.event, o.payload)
		}
		all = append(all, there)
	}
	return all
}

// take lets an event happen.
func (e *explorer) take(here place, event Event, payload Payload) place {
	core, decision := e.Step(here.core, event, payload)
	if decision.Row < 0 {
		e.blame(fmt.Sprintf("%q is %sed", event, decision.Answer), here)
		return here
	}
	here.core, here.timer = core, slices.Contains(decision.Do, PaceStore) || slices.Contains(decision.Do, PacePeers)
	var names []string
	for _, action := range decision.Do {
		if action != PaceStore && action != PacePeers {
			names = append(names, string(action))
		}
	}
	here.chain = strings.Join(names, "|")
	return here
}

func (e *explorer) find(p place) {
	if !e.seen[p] {
		e.seen[p] = true
		e.queue = append(e.queue, p)
	}
}

func (e *explorer) blame(what string, p place) {
	e.wrong = append(e.wrong, fmt.Sprintf("%s: in %s, given %+v, knowing %+v, when %+v", what, p.core.State, p.lot, p.core.Facts, p.truth))
}

// calm goes on from a place with nothing in the way, and returns where that ends, or waits for others.
func (e *explorer) calm(p place) place {
	been := map[place]bool{}
	for range 100 {
		if p.timer && been[p] {
			return p
		}
		been[p] = true
		switch {
		case p.chain != "":
			next := e.ends(p)
			if len(next) == 0 {
				return p // it was blamed
			}
			p = next[0]
		case p.timer:
			p = e.take(p, Elapsed, Payload{})
		default:
			return p
		}
	}
	e.blame("no end is reached", p)
	return p
}

func TestEveryPromiseHoldsInEveryReachablePlace(t *testing.T) {
	e := explore(Table, Elsewhere)
	require.Empty(t, e.wrong)
	visited := map[State]bool{}
	for p := range e.seen {
		visited[p.core.State] = true
	}
	assert.Len(t, visited, len(States), "every state was visited")
	t.Logf("explored %d places of %d states, %d rows and %d lots", len(e.seen), len(States), len(Table), len(lots()))
}

// Wherever a run is cut off, or fails, the next one comes to the end that the first one would have come to.
func TestARunThatWasCutOffAnywhereComesToTheSameEnd(t *testing.T) {
	e := explore(Table, Elsewhere)
	ends := map[lot]place{}
	for _, given := range lots() {
		ends[given] = e.calm(e.begin(given, origin(given)))
	}
	for p := range e.seen {
		if p.truth.outrun || p.truth.revived { // somebody else has changed what there is to come to
			continue
		}
		end := e.calm(e.begin(p.lot, p.truth))
		want := ends[p.lot]
		require.Equal(t, want.core.State, end.core.State, "cut off in %s, given %+v, when %+v", p.core.State, p.lot, p.truth)
		require.Equal(t, want.truth.place, end.truth.place, "cut off in %s, given %+v, when %+v", p.core.State, p.lot, p.truth)
		require.Equal(t, want.truth.aside, end.truth.aside, "cut off in %s, given %+v, when %+v", p.core.State, p.lot, p.truth)
	}
	require.Empty(t, e.wrong)
}

// At most one guard of a state and an event holds, so the order of the guarded rows means nothing.
func TestGuardsOfOneStateAndEventExcludeEachOther(t *testing.T) {
	for p := range explore(Table, Elsewhere).seen {
		holding := map[Event]int{}
		for _, row := range Table {
			if row.From == p.core.State && row.When != statemachine.Always && p.core.Facts.Holds(row.When) {
				holding[row.On]++
			}
		}
		for event, count := range holding {
			require.Equal(t, 1, count, "%s, %s, knowing %+v", p.core.State, event, p.core.Facts)
		}
	}
}
