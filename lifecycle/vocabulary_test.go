package lifecycle_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/cmd/docs"
	. "etcd-wrapper/lifecycle"
	"etcd-wrapper/statemachine"
)

// vocabulary maps the name of each string type to the values of its constants. The values are read from the source,
// because reflection cannot list constants.
var vocabulary = constants("vocabulary.go", "../statemachine/machine.go", "../statemachine/diagram.go", "condition.go", "../bootstrap/sidecar.go")

func constants(paths ...string) map[string][]string {
	values := map[string][]string{}
	for _, path := range paths {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			panic(err)
		}
		ast.Inspect(file, func(node ast.Node) bool {
			if spec, ok := node.(*ast.ValueSpec); ok {
				addConstant(values, spec)
			}
			return true
		})
	}
	return values
}

func addConstant(values map[string][]string, spec *ast.ValueSpec) {
	kind, typed := spec.Type.(*ast.Ident)
	if !typed || len(spec.Values) != 1 {
		return
	}
	if literal, ok := spec.Values[0].(*ast.BasicLit); ok && literal.Kind == token.STRING {
		value, err := strconv.Unquote(literal.Value)
		if err != nil {
			panic(err)
		}
		values[kind.Name] = append(values[kind.Name], value)
	}
}

// declared returns all constants of a type.
func declared[T ~string]() []T {
	var words []T
	for _, value := range vocabulary[reflect.TypeFor[T]().Name()] {
		words = append(words, T(value))
	}
	return words
}

// assertKnown checks that a part of the program handles all declared constants of a type and no others. The advice
// explains what to do about a missing constant.
func assertKnown[T ~string](t *testing.T, known []T, advice string) {
	t.Helper()
	kind := reflect.TypeFor[T]().Name()
	assert.NotEmpty(t, declared[T](), "no constant of type %s was found", kind)
	for _, word := range declared[T]() {
		assert.True(t, slices.Contains(known, word), "%s %q is not handled: %s", kind, word, advice)
	}
	for _, word := range known {
		assert.True(t, slices.Contains(declared[T](), word), "%s %q is used but not declared as a constant", kind, word)
	}
}

// usedIn concatenates the results of a function for all rows of the table.
func usedIn[T ~string](words func(Row) []T) []T {
	var all []T
	for _, row := range Table {
		all = append(all, words(row)...)
	}
	return all
}

func TestStates_areHandledEverywhere(t *testing.T) {
	assertKnown(t, tested.StateNames(), "describe it in States (vocabulary.go)")
	assertKnown(t, usedIn(func(r Row) []State { return []State{r.From, r.To} }), "no row leads to it (table.go)")
	assertKnown(t, slices.Concat(BeforeEtcd, WithEtcd, Group{Terminating, Terminated}),
		"add it to BeforeEtcd or WithEtcd (vocabulary.go), so that it has rows for a stop and a crash")
	for _, state := range BeforeEnd {
		assert.Contains(t, keepIn, state, "add a way to keep a run in this state to keepIn (driver_test.go)")
	}
	for _, state := range WithEtcd {
		assert.NotContains(t, BeforeEtcd, state, "a state must not be in both BeforeEtcd and WithEtcd (vocabulary.go)")
	}
	var bounds []statemachine.Bound
	for _, state := range States {
		bounds = append(bounds, state.Bound)
		assert.NotEmpty(t, state.Meaning, "describe the purpose of %s in States (vocabulary.go)", state.Name)
		assert.NotEmpty(t, state.Deadline, "describe the deadline of %s in States (vocabulary.go), or why there is none", state.Name)
	}
	assertKnown(t, bounds, "no state has this bound; check it in holdsBound (explore_test.go)")
}

func TestEvents_areHandledEverywhere(t *testing.T) {
	assertKnown(t, tested.Events(), "add a row for it (table.go)")
	assertKnown(t, usedIn(func(r Row) []Event { return []Event{r.On} }), "no row handles it (table.go)")
	var used []Event
	for _, h := range phrases {
		used = append(used, h.event)
	}
	assertKnown(t, used, "add a phrase for it to phrases (scenario_test.go)")
	seen := []Event{Started}
	for _, arrival := range explored(t).arrivals {
		if arrival.event != "" {
			seen = append(seen, arrival.event)
		}
	}
	assertKnown(t, seen, "it never occurs in the exploration: add it to outcomes or to anytimeInputs (explore_test.go)")
}

func TestGuards_areUsed(t *testing.T) {
	assertKnown(t, usedIn(func(r Row) []Guard { return []Guard{r.When} }), "no row has this guard (table.go)")
	holds, fails := []Guard{}, []Guard{Always}
	for node := range explored(t).arrivals {
		for _, guard := range declared[Guard]() {
			if node.core.Facts.Holds(guard) {
				holds = append(holds, guard)
			} else {
				fails = append(fails, guard)
			}
		}
	}
	assertKnown(t, uniq(holds), "it holds in no reachable node: define it in conditions (core.go)")
	assertKnown(t, uniq(fails), "it holds in every reachable node, so it has no effect (core.go)")
	assert.False(t, Facts{}.Holds("unknown guard"), "an unknown guard never holds")
}

func TestActions_areImplemented(t *testing.T) {
	assertKnown(t, usedIn(func(r Row) []Action { return r.Do }), "no row performs it (table.go)")
	for _, action := range declared[Action]() {
		assert.True(t, IsBound(action), "Action %q is not implemented: add it to blocking (work.go) or newTimers (pace.go)", action)
		if !SetsTimer(action) && !IsPrefetchAction(action) {
			assert.NotEmpty(t, outcomes(action, environment{}), "Action %q has no outcome: add its possible results to outcomes (explore_test.go)", action)
		}
	}
	assert.False(t, IsBound("unknown action"))
}

func TestAnswers_areUsed(t *testing.T) {
	var given []statemachine.Answer
	rules := NewRules(Table, Elsewhere)
	for _, state := range tested.StateNames() {
		for _, event := range tested.Events() {
			_, decision := rules.Step(Core{State: state}, event, Payload{})
			given = append(given, decision.Answer)
		}
	}
	assertKnown(t, uniq(given), "no state reacts to any event with it (table.go)")
}

func TestClasses_areUsedAndDocumented(t *testing.T) {
	var seen []Class
	for _, failure := range failures {
		if failure.class != "" {
			seen = append(seen, failure.class)
		}
	}
	assertKnown(t, uniq(seen), "return it from classOf (condition.go), and add such a failure to failures (early_test.go)")
	assertDocumented[Class](t, "The class is ")
}

// assertDocumented checks that the documentation lists the words of a type after an introduction.
func assertDocumented[T ~string](t *testing.T, introduction string) {
	t.Helper()
	assert.ElementsMatch(t, declared[T](), listed[T](t, introduction), "list them in README.md or docs/*.md after: %s", introduction)
}

// list matches consecutive words in backquotes.
var list = regexp.MustCompile("^`[^`]*`(?:(?:,|\\s+or|\\s+and)+\\s+`[^`]*`)*")

// listed returns the words in backquotes after an introduction. The introduction must occur exactly once in README.md
// and docs/*.md together, immediately before the words.
func listed[T ~string](t *testing.T, introduction string) (words []T) {
	t.Helper()
	parts := strings.Split(docs.Text(t), introduction)
	require.Len(t, parts, 2, "%q must occur exactly once in README.md and docs/*.md", introduction)
	for _, word := range docs.Quoted(list.FindString(parts[1])) {
		words = append(words, T(word))
	}
	return words
}

// Every known status must have a row of its own. Without one, the machine would poll again, as after an unknown
// status.
func TestSidecarStatuses_haveRows(t *testing.T) {
	assertKnown(t, bootstrap.InitializationStatuses, "add it to InitializationStatuses (bootstrap/sidecar.go)")
	var used []bootstrap.InitializationStatus
	for _, h := range phrases {
		if h.event == Replied && h.payload.Word != unknownStatus {
			used = append(used, h.payload.Word)
		}
	}
	assertKnown(t, used, "add a phrase for it to phrases (scenario_test.go)")
	assertDocumented[bootstrap.InitializationStatus](t, "the sidecar's last answer: ")
	rules := NewRules(Table, Elsewhere)
	for _, word := range declared[bootstrap.InitializationStatus]() {
		_, decision := rules.Step(NewCore(), Replied, Payload{Word: word})
		assert.NotEqual(t, Always, Table[decision.Row].When,
			"%q is handled like an unknown status: add a guard (core.go) and a row for it (table.go)", word)
		assert.True(t, word == bootstrap.New || word.Running() || word.Result(),
			"add %q to Running or Result (bootstrap/sidecar.go)", word)
	}
}

// explored explores the table and fails the test if an invariant is violated, because the exploration is then
// incomplete.
func explored(t *testing.T) *explorer {
	t.Helper()
	found := explore()
	require.Empty(t, found.violations, "an invariant is violated")
	return found
}

func uniq[T ~string](words []T) []T {
	slices.Sort(words)
	return slices.Compact(words)
}
