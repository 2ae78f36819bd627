package recovery

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"etcd-wrapper/statemachine"
)

// sentence is one expectation of recovery: standing in a state and knowing Given, when On happens with its payload, the
// machine goes to To and does Do. It is written down here a second time on purpose: a change of the table must be a change
// of a sentence that a reviewer reads.
type sentence struct {
	story   string
	in      statemachine.Source
	given   Facts
	on      Event
	payload Payload
	to      State
	do      []Action
}

var sentences = slices.Concat(sentencesOfPeers, sentencesOfStore)

// failure says how rules differ from the sentence in one of its states; empty if they don't.
func (s sentence) failure(by suite, from State) string {
	decisions := by.steps(from, s.given, s.on, s.payload)
	decision := decisions[len(decisions)-1]
	switch {
	case decision.Row < 0:
		return fmt.Sprintf("no row answers; the event is %sed", decision.Answer)
	case decision.To != s.to:
		return fmt.Sprintf("goes to %s, not to %s", decision.To, s.to)
	case !slices.Equal(decision.Do, s.do):
		return fmt.Sprintf("does %q, not %q", decision.Do, s.do)
	}
	return ""
}

type rulesOf = statemachine.Rules[Facts, Payload]

// suite is what is tested: the machine's rules, and those that it decides by.
type suite struct {
	*rulesOf
	decisions []rule
}

var program = suite{NewRules(Table, Elsewhere), rules}

// steps are what an event leads to: where that is a decision, the verdict follows at once, and says why.
func (s suite) steps(from State, given Facts, on Event, payload Payload) []statemachine.Decision {
	core, first := s.Step(statemachine.Core[Facts]{State: from, Facts: given}, on, payload)
	if first.Row < 0 || first.To != Decide {
		return []statemachine.Decision{first}
	}
	decided := decideBy(s.decisions, core.Facts.caseOf())
	_, second := s.Step(core, decided.Verdict, Payload{})
	second.Why = decided.Why
	return []statemachine.Decision{first, second}
}

func TestEveryStepOfRecovery(t *testing.T) {
	for _, s := range sentences {
		for _, from := range s.in.Each() {
			t.Run(fmt.Sprintf("%s/%s", from, s.story), func(t *testing.T) {
				assert.Empty(t, s.failure(program, from))
			})
		}
	}
}

func TestEveryRowIsTakenAndEveryGuardIsRefused(t *testing.T) {
	for i, row := range Table {
		taken, refused := false, row.When == statemachine.Always
		for _, s := range sentences {
			for _, from := range s.in.Each() {
				for _, decision := range program.steps(from, s.given, s.on, s.payload) {
					taken = taken || decision.Row == i
					refused = refused || decision.Row > i && Table[decision.Row].From == row.From && Table[decision.Row].On == row.On
				}
			}
		}
		assert.True(t, taken, "no sentence takes the row %s, %s [%s]", row.From, row.On, row.When)
		assert.True(t, refused, "no sentence is refused by the guard of %s, %s [%s]", row.From, row.On, row.When)
	}
}

// Where there is no row: at the end nothing matters any more, all else cannot come.
func TestWhatHasNoRowIsIgnoredOrRejected(t *testing.T) {
	for _, state := range states() {
		for _, event := range events() {
			if !hasRow(state, event) {
				assert.Empty(t, restFailure(program.rulesOf, state, event), "%s, %s", state, event)
			}
		}
	}
}

func restFailure(rules *rulesOf, state State, event Event) string {
	want := statemachine.Reject
	if state == Ready {
		want = statemachine.Ignore
	}
	_, decision := rules.Step(statemachine.Core[Facts]{State: state}, event, Payload{})
	switch {
	case decision.Answer != want:
		return fmt.Sprintf("is answered with %s, not %s", decision.Answer, want)
	case decision.Why == "":
		return "gives no reason"
	}
	return ""
}

// stepFailures is everything that the tests above have against a table.
func stepFailures(table []Row, elsewhere []statemachine.Default) (failures []string) {
	changed := suite{NewRules(table, elsewhere), rules}
	failures = changed.failures()
	for _, state := range states() {
		for _, event := range events() {
			if hasRow(state, event) {
				continue
			}
			if failure := restFailure(changed.rulesOf, state, event); failure != "" {
				failures = append(failures, fmt.Sprintf("%s, %s %s", state, event, failure))
			}
		}
	}
	return failures
}

// failures are what the sentences and the reasons have against a suite.
func (s suite) failures() (failures []string) {
	failures = reasonFailures(s)
	for _, told := range sentences {
		for _, from := range told.in.Each() {
			if failure := told.failure(s, from); failure != "" {
				failures = append(failures, told.story+": "+failure)
			}
		}
	}
	return failures
}

func states() (names []State) {
	for _, state := range States {
		names = append(names, state.Name)
	}
	return names
}

func events() (names []Event) {
	for _, answer := range Elsewhere {
		names = append(names, answer.On)
	}
	return names
}

func hasRow(state State, event Event) bool {
	return slices.ContainsFunc(Table, func(row Row) bool { return row.From == state && row.On == event })
}
