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

// vocabulary maps the name of each type to its constants, including unused ones. The constants are read from the
// source.
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

// assertKnown compares the constants that a part of the program handles with the declared ones, and explains how to
// fix any difference.
func assertKnown[T ~string](t *testing.T, known []T, advice string) {
	t.Helper()
	kind := reflect.TypeFor[T]().Name()
	assert.NotEmpty(t, declared[T](), "no constant of type %s was found", kind)
	for _, word := range declared[T]() {
		assert.True(t, slices.Contains(known, word), "%s %q is forgotten: %s", kind, word, advice)
	}
	for _, word := range known {
		assert.True(t, slices.Contains(declared[T](), word), "%s %q is used, but no constant declares it", kind, word)
	}
}

// usedIn collects constants from all rows of the table.
func usedIn[T ~string](words func(Row) []T) []T {
	var all []T
	for _, row := range Table {
		all = append(all, words(row)...)
	}
	return all
}

func TestNoStateIsForgotten(t *testing.T) {
	assertKnown(t, tested.StateNames(), "describe it in States (vocabulary.go)")
	assertKnown(t, usedIn(func(r Row) []State { return []State{r.From, r.To} }), "no row leads to it (table.go)")
	assertKnown(t, slices.Concat(BeforeEtcd, WithEtcd, Group{Terminating, Terminated}),
		"put it into BeforeEtcd or WithEtcd (vocabulary.go), so that a stop or a crash is answered in it")
	for _, state := range BeforeEnd {
		assert.Contains(t, parkings, state, "say how a run is held in it, in parkings (driver_test.go)")
	}
	for _, state := range WithEtcd {
		assert.NotContains(t, BeforeEtcd, state, "a state is either BeforeEtcd or WithEtcd (vocabulary.go)")
	}
	var bounds []statemachine.Bound
	for _, state := range States {
		bounds = append(bounds, state.Bound)
		assert.NotEmpty(t, state.Meaning, "say what %s is for (table.go)", state.Name)
		assert.NotEmpty(t, state.Deadline, "say what bounds a visit to %s, or why nothing does (table.go)", state.Name)
	}
	assertKnown(t, bounds, "no state has this bound; check it in holdsBound (explore_test.go)")
}

func TestNoEventIsForgotten(t *testing.T) {
	assertKnown(t, tested.Events(), "write a row for it (table.go)")
	assertKnown(t, usedIn(func(r Row) []Event { return []Event{r.On} }), "no row answers it (table.go)")
	var told []Event
	for _, h := range phrases {
		told = append(told, h.event)
	}
	assertKnown(t, told, "give it a phrase for scenarios, in phrases (scenario_test.go)")
	seen := []Event{Started}
	for _, by := range explored(t).from {
		if by.by != "" {
			seen = append(seen, by.by)
		}
	}
	assertKnown(t, seen, "the exploration never sees it: add it to what an action can end with, in outcomes, or to anytime (explore_test.go)")
}

func TestNoGuardIsForgotten(t *testing.T) {
	assertKnown(t, usedIn(func(r Row) []Guard { return []Guard{r.When} }), "no row is guarded by it (table.go)")
	holds, fails := []Guard{}, []Guard{Always}
	for place := range explored(t).from {
		for _, guard := range declared[Guard]() {
			if place.core.Facts.Holds(guard) {
				holds = append(holds, guard)
			} else {
				fails = append(fails, guard)
			}
		}
	}
	assertKnown(t, uniq(holds), "it holds in no reachable place: say what it means in conditions (core.go)")
	assertKnown(t, uniq(fails), "it holds in every reachable place, so it guards nothing (core.go)")
	assert.False(t, Facts{}.Holds("a guard that nobody wrote"), "what is unknown never holds")
}

func TestNoActionIsForgotten(t *testing.T) {
	assertKnown(t, usedIn(func(r Row) []Action { return r.Do }), "no row does it (table.go)")
	for _, action := range declared[Action]() {
		assert.True(t, IsBound(action), "Action %q does nothing: bind it in blocking (work.go) or newTimers (pace.go)", action)
		if !SetsTimer(action) && !IsBeside(action) {
			assert.NotEmpty(t, outcomes(action, truth{}), "Action %q: say how it can end, in outcomes (explore_test.go)", action)
		}
	}
	assert.False(t, IsBound("an action that nobody wrote"))
}

func TestNoAnswerIsForgotten(t *testing.T) {
	var given []statemachine.Answer
	rules := NewRules(Table, Elsewhere)
	for _, state := range tested.StateNames() {
		for _, event := range tested.Events() {
			_, decision := rules.Step(Core{State: state}, event, Payload{})
			given = append(given, decision.Answer)
		}
	}
	assertKnown(t, uniq(given), "no state answers any event with it (table.go)")
}

func TestProblemClasses_areAllUsed(t *testing.T) {
	var seen []Class
	for _, failure := range failures {
		if failure.class != "" {
			seen = append(seen, failure.class)
		}
	}
	assertKnown(t, uniq(seen), "say when a failure is of it, in classOf (condition.go), and show such a failure in failures (timeline_test.go)")
	assertDocumented[Class](t, "The class is ")
}

// assertDocumented checks that the documentation lists the words of a type after an introduction.
func assertDocumented[T ~string](t *testing.T, introduction string) {
	t.Helper()
	assert.ElementsMatch(t, declared[T](), listed[T](t, introduction), "list them in README.md or docs/*.md behind: %s", introduction)
}

// list matches consecutive words in backquotes.
var list = regexp.MustCompile("^`[^`]*`(?:(?:,|\\s+or|\\s+and)+\\s+`[^`]*`)*")

// listed returns the words in backquotes after an introduction, in any order. The introduction must occur once in
// README.md or docs/*.md, on the same line as the words.
func listed[T ~string](t *testing.T, introduction string) (words []T) {
	t.Helper()
	parts := strings.Split(docs.Text(t), introduction)
	require.Len(t, parts, 2, "%q must be in README.md and docs/*.md once", introduction)
	for _, word := range docs.Quoted(list.FindString(parts[1])) {
		words = append(words, T(word))
	}
	return words
}

// Every known status must have a row. After an unrecognized status, the machine must poll again without opening
// anything.
func TestSidecarWords_haveRows(t *testing.T) {
	assertKnown(t, bootstrap.InitializationStatuses, "add it to InitializationStatuses (bootstrap/sidecar.go)")
	var told []bootstrap.InitializationStatus
	for _, h := range phrases {
		if h.event == Replied && h.payload.Word != unknownWord {
			told = append(told, h.payload.Word)
		}
	}
	assertKnown(t, told, "give it a phrase for scenarios, in phrases (scenario_test.go)")
	assertDocumented[bootstrap.InitializationStatus](t, "the sidecar's last answer: ")
	rules := NewRules(Table, Elsewhere)
	for _, word := range declared[bootstrap.InitializationStatus]() {
		_, decision := rules.Step(NewCore(), Replied, Payload{Word: word})
		assert.NotEqual(t, Always, Table[decision.Row].When,
			"%q is answered like an unknown word: write a guard (core.go) and a row for it (table.go)", word)
		assert.True(t, word == bootstrap.New || word.Running() || word.Result(),
			"say in Running or Result (bootstrap/sidecar.go) whether %q goes on or ends an initialization", word)
	}
}

// explored explores the table and fails on any violated invariant, because a violation ends the exploration early.
func explored(t *testing.T) *explorer {
	t.Helper()
	found := explore()
	require.Empty(t, found.wrong, "a promise is broken")
	return found
}

func uniq[T ~string](words []T) []T {
	slices.Sort(words)
	return slices.Compact(words)
}
