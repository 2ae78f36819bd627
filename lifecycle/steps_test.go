package lifecycle_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	. "etcd-wrapper/lifecycle"
)

// step is a sentence about one state.
type step struct {
	sentence
	from State
}

// steps are all sentences, those about a group once for each of its states.
var steps = each(sentences)

func each(sentences []sentence) []step {
	var all []step
	for _, s := range sentences {
		for _, from := range s.in.Each() {
			one := step{s, from}
			if one.to == there {
				one.to = from
			}
			all = append(all, one)
		}
	}
	return all
}

func TestEveryStepOfTheLifecycle(t *testing.T) {
	for _, s := range steps {
		t.Run(fmt.Sprintf("%s/%s", s.from, s.story), func(t *testing.T) {
			assert.Empty(t, s.failure(NewRules(Table, Elsewhere)))
		})
	}
}

// failure says how the rules differ from the step; empty if they don't.
func (s step) failure(rules *Rules) string {
	after, decision := rules.Step(Core{State: s.from, Facts: s.given}, s.on, s.payload)
	switch {
	case decision.Row < 0:
		return fmt.Sprintf("no row answers; the event is %sed", decision.Answer)
	case after.State != s.to || decision.To != s.to:
		return fmt.Sprintf("goes to %s, not to %s", after.State, s.to)
	case !slices.Equal(decision.Do, s.do):
		return fmt.Sprintf("does %q, not %q", decision.Do, s.do)
	default:
		return ""
	}
}

// Each row has a subtest of its own in which its guard holds, and each guarded row one in which it does not.
func TestEveryRowIsTakenAndEveryGuardIsRefused(t *testing.T) {
	rules := NewRules(Table, Elsewhere)
	for i, row := range Table {
		taken, refused := false, row.When == Always
		for _, s := range steps {
			if s.from != row.From || s.on != row.On {
				continue
			}
			_, decision := rules.Step(Core{State: s.from, Facts: s.given}, s.on, s.payload)
			taken = taken || decision.Row == i
			refused = refused || decision.Row > i
		}
		t.Run(fmt.Sprintf("%s, %s [%s] to %s", row.From, row.On, row.When, row.To), func(t *testing.T) {
			assert.True(t, taken, "no step takes this row: write a sentence that does (transition_test.go)")
			assert.True(t, refused, "no step is refused by this row's guard: write a sentence that is (transition_test.go)")
		})
	}
}

// Where there is no row: everything is over in Terminated, a repeated stop is no news, all else cannot come.
func TestWhatHasNoRowIsIgnoredOrRejected(t *testing.T) {
	for _, state := range tested.StateNames() {
		for _, event := range tested.Events() {
			if !tested.Has(state, event) {
				t.Run(fmt.Sprintf("%s, %s: %s", state, event, answerWithoutRow(state, event)), func(t *testing.T) {
					assert.Empty(t, restFailure(NewRules(Table, Elsewhere), state, event))
				})
			}
		}
	}
}

func answerWithoutRow(state State, event Event) Answer {
	if state == Terminated || (state == Terminating && (event == StopPosted || event == ListenerLost)) {
		return Ignore
	}
	return Reject
}

func restFailure(rules *Rules, state State, event Event) string {
	before := Core{State: state, Facts: begunByTerm}
	after, decision := rules.Step(before, event, Payload{Err: assert.AnError})
	switch {
	case decision.Answer != answerWithoutRow(state, event):
		return fmt.Sprintf("is answered with %s; write a row if it can come (table.go)", decision.Answer)
	case after != before || decision.To != state || len(decision.Do) > 0:
		return "changes something"
	case decision.Why == "":
		return "gives no reason"
	default:
		return ""
	}
}

// stepFailures is everything that the tests above have against a table.
func stepFailures(table []Row, elsewhere []Default) []string {
	var failures []string
	rules := NewRules(table, elsewhere)
	for _, s := range steps {
		if failure := s.failure(rules); failure != "" {
			failures = append(failures, s.story+": "+failure)
		}
	}
	for _, state := range tested.StateNames() {
		for _, event := range tested.Events() {
			if tested.Has(state, event) {
				continue
			}
			if failure := restFailure(rules, state, event); failure != "" {
				failures = append(failures, fmt.Sprintf("%s, %s: %s", state, event, failure))
			}
		}
	}
	return failures
}
