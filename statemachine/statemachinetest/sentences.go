package statemachinetest

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"etcd-wrapper/statemachine"
)

// Sentence is one expectation of a machine: in a state and knowing Given, when On happens, it goes to To and does Do. It is written
// down a second time on purpose: a change of the table must be a change of a sentence that a reviewer reads. A machine's tests have a
// type of their own made from it, so that sentences can be written without the fields' names.
type Sentence[F, P any] struct {
	Story string
	In    statemachine.Source
	Given F
	On    statemachine.Event
	Told  P
	To    statemachine.State // statemachine.Stays: the state that it was in
	Do    []statemachine.Action
}

type known[F, P any] interface {
	comparable
	statemachine.Facts[F, P]
}

// Suite is what is expected of a machine's single steps.
type Suite[F known[F, P], P any] struct {
	Machine
	Final     statemachine.State
	Sentences []Sentence[F, P]
	Known     []F                                                              // what may be: where an event has one row, it is taken whatever is
	Rest      func(statemachine.State, statemachine.Event) statemachine.Answer // where there is no row, if that is given and told:
	Given     F
	Told      P
}

// Assert holds that the table does what the sentences say, that each row and each guard has its sentence, and that what has no row is
// answered as Rest says.
func (s Suite[F, P]) Assert(t *testing.T) {
	t.Helper()
	rules := s.rules(s.Table, s.Elsewhere)
	for _, sentence := range s.Sentences {
		for _, from := range sentence.In.States() {
			t.Run(fmt.Sprintf("%s/%s/%s", from, sentence.On, sentence.Story), func(t *testing.T) { assert.Empty(t, s.check(rules, sentence, from)) })
		}
	}
	for i, row := range s.Table {
		taken, refused := false, row.When == statemachine.Always
		for _, sentence := range s.Sentences {
			if slices.Contains(sentence.In.States(), row.From) && sentence.On == row.On {
				_, decision := rules.Step(statemachine.Core[F]{State: row.From, Facts: sentence.Given}, row.On, sentence.Told)
				taken, refused = taken || decision.Row == i, refused || decision.Row > i
			}
		}
		t.Run(fmt.Sprintf("%s, %s [%s] to %s", row.From, row.On, row.When, row.To), func(t *testing.T) {
			assert.True(t, taken, "no sentence takes this row: write one that does, beside those of the table's test")
			assert.True(t, refused, "no sentence is refused by this row's guard: write one that is")
		})
	}
	s.eachDefault(func(state statemachine.State, event statemachine.Event) {
		t.Run(fmt.Sprintf("%s, %s: %s", state, event, s.Rest(state, event)), func(t *testing.T) { assert.Empty(t, s.checkDefault(rules, state, event)) })
	})
}

// Failures is everything that single steps have against a table.
func (s Suite[F, P]) Check(table []statemachine.Row, elsewhere []statemachine.Default) (failures []string) {
	rules := s.rules(table, elsewhere)
	say := func(what, failure string) {
		if failure != "" {
			failures = append(failures, what+": "+failure)
		}
	}
	for _, sentence := range s.Sentences {
		for _, from := range sentence.In.States() {
			say(sentence.Story, s.check(rules, sentence, from))
		}
	}
	s.eachDefault(func(state statemachine.State, event statemachine.Event) {
		say(fmt.Sprintf("%s, %s", state, event), s.checkDefault(rules, state, event))
	})
	return failures
}

func (s Suite[F, P]) rules(table []statemachine.Row, elsewhere []statemachine.Default) *statemachine.Rules[F, P] {
	return statemachine.NewRules[F, P](table, elsewhere, s.Final)
}

// failure says how rules differ from a sentence in one of its states; empty if they do not.
func (s Suite[F, P]) check(rules *statemachine.Rules[F, P], sentence Sentence[F, P], from statemachine.State) string {
	givens := []F{sentence.Given}
	if len(s.Known) > 0 && len(s.Rows(from, sentence.On)) == 1 {
		givens = s.Known
	}
	if sentence.To == statemachine.Stays {
		sentence.To = from
	}
	for _, given := range givens {
		after, decision := rules.Step(statemachine.Core[F]{State: from, Facts: given}, sentence.On, sentence.Told)
		switch {
		case decision.Row < 0:
			return fmt.Sprintf("no row answers; the event is %sed", decision.Answer)
		case after.State != sentence.To || decision.To != sentence.To:
			return fmt.Sprintf("goes to %s, not to %s", after.State, sentence.To)
		case !slices.Equal(decision.Do, sentence.Do):
			return fmt.Sprintf("does %q, not %q", decision.Do, sentence.Do)
		}
	}
	return ""
}

// resting visits each state and each event for which that has no row.
func (s Suite[F, P]) eachDefault(visit func(statemachine.State, statemachine.Event)) {
	for _, state := range s.StateNames() {
		for _, event := range s.Events() {
			if !s.Has(state, event) {
				visit(state, event)
			}
		}
	}
}

func (s Suite[F, P]) checkDefault(rules *statemachine.Rules[F, P], state statemachine.State, event statemachine.Event) string {
	before := statemachine.Core[F]{State: state, Facts: s.Given}
	after, decision := rules.Step(before, event, s.Told)
	switch {
	case decision.Answer != s.Rest(state, event):
		return fmt.Sprintf("is answered with %s, not %s; write a row if it can come", decision.Answer, s.Rest(state, event))
	case before != after || decision.To != state || len(decision.Do) > 0:
		return "changes something"
	case decision.Why == "":
		return "gives no reason"
	default:
		return ""
	}
}
