package statemachinetest

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"etcd-wrapper/statemachine"
)

// Sentence is an expected transition: in state In with facts Given, event On with the payload leads to state To and
// the actions Do. Sentences deliberately duplicate the table, so that every change to the table requires a change to
// a sentence. The tests of a machine define a type from Sentence in order to omit the field names.
type Sentence[F, P any] struct {
	Name    string
	In      statemachine.Source
	Given   F
	On      statemachine.Event
	Payload P
	To      statemachine.State // statemachine.Stays if the state does not change
	Do      []statemachine.Action
}

// Suite tests single steps of a machine.
type Suite[F statemachine.Facts[F, P], P any] struct {
	Machine
	Final     statemachine.State
	Sentences []Sentence[F, P]
	// Known contains facts for which a row must be taken if it is the only row for its state and event.
	Known []F
	// Rest returns the expected answer to an event without a row, which is checked with Given and Payload.
	Rest    func(statemachine.State, statemachine.Event) statemachine.Answer
	Given   F
	Payload P
}

// Assert checks that the table agrees with the sentences, that sentences cover every row and every false guard, and
// that events without a row get the answer from Rest.
func (s Suite[F, P]) Assert(t *testing.T) {
	t.Helper()
	rules := s.rules()
	for _, sentence := range s.Sentences {
		for _, from := range sentence.In.States() {
			assert.Empty(t, s.check(rules, sentence, from), "%s, %s: %s", from, sentence.On, sentence.Name)
		}
	}
	for i, row := range s.Table {
		taken, refused := false, row.When == statemachine.Always
		for _, sentence := range s.Sentences {
			if slices.Contains(sentence.In.States(), row.From) && sentence.On == row.On {
				_, decision := rules.Step(statemachine.Core[F]{State: row.From, Facts: sentence.Given}, row.On, sentence.Payload)
				taken, refused = taken || decision.Row == i, refused || decision.Row > i
			}
		}
		name := fmt.Sprintf("%s, %s [%s] to %s", row.From, row.On, row.When, row.To)
		assert.True(t, taken, "%s: no sentence covers this row; add one", name)
		assert.True(t, refused, "%s: no sentence covers a false guard of this row; add one", name)
	}
	s.AssertDefaults(t)
}

// AssertDefaults checks that events without a row get the answer from Rest.
func (s Suite[F, P]) AssertDefaults(t *testing.T) {
	t.Helper()
	rules := s.rules()
	for _, state := range s.StateNames() {
		for _, event := range s.Events() {
			if !s.Has(state, event) {
				assert.Empty(t, s.checkDefault(rules, state, event), "%s, %s", state, event)
			}
		}
	}
}

func (s Suite[F, P]) rules() *statemachine.Rules[F, P] {
	return statemachine.NewRules[F, P](s.Table, s.Elsewhere, s.Final)
}

// check steps the rules from a state of the sentence. It returns how the result differs from the sentence, or "" if
// it does not.
func (s Suite[F, P]) check(rules *statemachine.Rules[F, P], sentence Sentence[F, P], from statemachine.State) string {
	givens := []F{sentence.Given}
	if len(s.Known) > 0 && len(s.Rows(from, sentence.On)) == 1 {
		givens = s.Known
	}
	if sentence.To == statemachine.Stays {
		sentence.To = from
	}
	for _, given := range givens {
		after, decision := rules.Step(statemachine.Core[F]{State: from, Facts: given}, sentence.On, sentence.Payload)
		switch {
		case decision.Row < 0:
			return fmt.Sprintf("no row matches; the default answer is %s", decision.Answer)
		case after.State != sentence.To || decision.To != sentence.To:
			return fmt.Sprintf("goes to %s, want %s", after.State, sentence.To)
		case !slices.Equal(decision.Do, sentence.Do):
			return fmt.Sprintf("does %q, want %q", decision.Do, sentence.Do)
		}
	}
	return ""
}

func (s Suite[F, P]) checkDefault(rules *statemachine.Rules[F, P], state statemachine.State, event statemachine.Event) string {
	before := statemachine.Core[F]{State: state, Facts: s.Given}
	after, decision := rules.Step(before, event, s.Payload)
	switch {
	case decision.Answer != s.Rest(state, event):
		return fmt.Sprintf("answer is %s, want %s; add a row if the event can occur", decision.Answer, s.Rest(state, event))
	case !reflect.DeepEqual(before, after) || decision.To != state || len(decision.Do) > 0:
		return "the default answer changes the machine"
	case decision.Why == "":
		return "the default answer has no reason"
	default:
		return ""
	}
}
