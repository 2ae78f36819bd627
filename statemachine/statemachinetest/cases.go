package statemachinetest

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"etcd-wrapper/statemachine"
)

// Case is a test case for one transition: in state In with facts Given, event On with the payload must lead to state To
// and the actions Do. The cases deliberately duplicate the table, so that every change to the table requires a change
// to a case. The tests of a machine define a type from Case so that they can omit the field names.
type Case[F, P any] struct {
	Name    string
	In      statemachine.Source
	Given   F
	On      statemachine.Event
	Payload P
	To      statemachine.State // statemachine.Stays if the state must not change
	Do      []statemachine.Action
}

// Suite tests single steps of a machine.
type Suite[F statemachine.Facts[F, P], P any] struct {
	Machine
	Final statemachine.State
	Cases []Case[F, P]
	// Known replaces the facts of a case if there is only one row for its state and event, because that row must be
	// taken whatever the facts are.
	Known []F
	// Rest returns the expected answer to an event in a state that has no row for it. These answers are checked with
	// the facts Given and the payload Payload.
	Rest    func(statemachine.State, statemachine.Event) statemachine.Answer
	Given   F
	Payload P
}

// Assert checks every case against the table. At least one case must take each row and, if the row has a guard, at
// least one must skip the row because the guard is false. Events without a row must get the answer from Rest.
func (s Suite[F, P]) Assert(t *testing.T) {
	t.Helper()
	rules := s.rules()
	for _, c := range s.Cases {
		for _, from := range c.In.States() {
			assert.Empty(t, s.check(rules, c, from), "%s, %s: %s", from, c.On, c.Name)
		}
	}
	for i, row := range s.Table {
		taken, skipped := false, row.When == statemachine.Always
		for _, c := range s.Cases {
			if slices.Contains(c.In.States(), row.From) && c.On == row.On {
				_, decision := rules.Step(statemachine.Core[F]{State: row.From, Facts: c.Given}, row.On, c.Payload)
				taken, skipped = taken || decision.Row == i, skipped || decision.Row > i
			}
		}
		name := fmt.Sprintf("%s, %s [%s] to %s", row.From, row.On, row.When, row.To)
		assert.True(t, taken, "%s: no test case takes this row; add one", name)
		assert.True(t, skipped, "%s: no test case skips this row because of a false guard; add one", name)
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

// check applies the event of a case in one of the case's states. It returns a description of how the result differs
// from the expected one, or "" if it does not.
func (s Suite[F, P]) check(rules *statemachine.Rules[F, P], c Case[F, P], from statemachine.State) string {
	givens := []F{c.Given}
	if len(s.Known) > 0 && len(s.Rows(from, c.On)) == 1 {
		givens = s.Known
	}
	if c.To == statemachine.Stays {
		c.To = from
	}
	for _, given := range givens {
		after, decision := rules.Step(statemachine.Core[F]{State: from, Facts: given}, c.On, c.Payload)
		switch {
		case decision.Row < 0:
			return fmt.Sprintf("no row matches; the default answer is %s", decision.Answer)
		case after.State != c.To || decision.To != c.To:
			return fmt.Sprintf("goes to %s, want %s", after.State, c.To)
		case !slices.Equal(decision.Do, c.Do):
			return fmt.Sprintf("does %q, want %q", decision.Do, c.Do)
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
