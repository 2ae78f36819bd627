package lifecycle_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	. "etcd-wrapper/lifecycle"
)

func TestEveryStateIsReachedFromQuery(t *testing.T) {
	assert.ElementsMatch(t, stateNames(), reachable(Query))
}

func TestTheEndIsReachedFromEveryState(t *testing.T) {
	for _, state := range stateNames() {
		assert.Contains(t, reachable(state), Terminated, "from %s", state)
	}
}

func TestNothingLeadsOutOfTerminated(t *testing.T) {
	assert.Equal(t, []State{Terminated}, reachable(Terminated))
}

// Once etcd may hold the data, no way leads back to where an initialization is asked for.
func TestNoWayLeadsFromAnEtcdToAnInitialization(t *testing.T) {
	for _, state := range []State{StartEtcd, Serving, Terminating, Terminated} {
		for _, row := range Table {
			if slices.Contains(reachable(state), row.From) {
				assert.NotContains(t, row.Do, AskInit, "%s leads to %s", state, row.From)
			}
		}
	}
}

// Successful is the only word that leads towards the data.
func TestEtcdIsOpenedOnlyAfterSuccessful(t *testing.T) {
	for _, row := range Table {
		if row.To == FetchConfig && row.From != FetchConfig {
			assert.Contains(t, []Guard{SaysSuccessful, ConfigKept}, row.When)
		}
		if slices.Contains(row.Do, OpenEtcd) {
			assert.Equal(t, FetchConfig, row.From)
			assert.Less(t, slices.Index(row.Do, RemoveRecord), slices.Index(row.Do, OpenEtcd), "the record goes first")
			assert.Contains(t, row.Do, RemoveRecord)
		}
	}
}

func TestTheVolumeIsLockedBeforeAnythingIsAsked(t *testing.T) {
	for _, row := range Table {
		if at := slices.Index(row.Do, AskStatus); at >= 0 {
			assert.Equal(t, 0, slices.Index(row.Do, LockVolume), "row to %s", row.To)
		}
	}
}

func TestTheRecordIsWrittenOnlyAfterTheClose(t *testing.T) {
	for _, row := range Table {
		if slices.Contains(row.Do, WriteRecord) {
			assert.Equal(t, EtcdClosed, row.On)
			assert.Equal(t, CleanStop, row.When)
		}
	}
}

func TestRowsOfOnePairStandTogetherAndOnlyTheLastIsUnguarded(t *testing.T) {
	seen := map[[2]string]bool{}
	for i, row := range Table {
		key := [2]string{string(row.From), string(row.On)}
		sameAsNext := i+1 < len(Table) && Table[i+1].From == row.From && Table[i+1].On == row.On
		assert.Equal(t, !sameAsNext, row.When == Always, "%v", key)
		if i == 0 || Table[i-1].From != row.From || Table[i-1].On != row.On {
			assert.False(t, seen[key], "%v stands in two places", key)
		}
		seen[key] = true
	}
}

func TestEveryWaitHasADeadline(t *testing.T) {
	timers := []Action{PaceProgress, PaceFailure, PaceSilence, PaceLock, LimitStart, LimitAbort, LimitStop}
	for _, row := range Table {
		entered := row.To == Wait && row.From != Wait || row.To == StartEtcd || row.To == Terminating && row.From != Terminating
		if entered {
			assert.True(t, slices.ContainsFunc(row.Do, func(a Action) bool { return slices.Contains(timers, a) }), "row %+v", row)
		}
	}
	for _, state := range States {
		assert.NotEmpty(t, state.Deadline, "%s", state.Name)
	}
}

// Every constant of the vocabulary is used by the table, and nothing but it.
func TestTheVocabularyIsComplete(t *testing.T) {
	declared := constants(t)
	used := map[string][]string{}
	for _, row := range Table {
		used["State"] = append(used["State"], string(row.From), string(row.To))
		used["Event"] = append(used["Event"], string(row.On))
		used["Guard"] = append(used["Guard"], string(row.When))
		for _, action := range row.Do {
			used["Action"] = append(used["Action"], string(action))
		}
	}
	for kind, names := range used {
		slices.Sort(names)
		assert.ElementsMatch(t, declared[kind], slices.Compact(names), "%s", kind)
	}
	var answered []string
	for _, event := range eventNames() {
		answered = append(answered, string(event))
	}
	assert.ElementsMatch(t, declared["Event"], answered, "Elsewhere answers every event once")
	assert.ElementsMatch(t, declared["State"], asStrings(stateNames()), "States describes every state once")
}

func TestEveryActionIsBoundToWhatItDoes(t *testing.T) {
	for _, action := range constants(t)["Action"] {
		assert.True(t, IsBound(Action(action)), "%s", action)
	}
	assert.False(t, IsBound("an action that nobody wrote"))
}

// constants reads the values of the typed constants in vocabulary.go, by type.
func constants(t *testing.T) map[string][]string {
	file, err := parser.ParseFile(token.NewFileSet(), "vocabulary.go", nil, 0)
	require.NoError(t, err)
	values := map[string][]string{}
	ast.Inspect(file, func(node ast.Node) bool {
		spec, ok := node.(*ast.ValueSpec)
		if !ok {
			return true
		}
		kind, literal := spec.Type.(*ast.Ident), spec.Values[0].(*ast.BasicLit)
		value, err := strconv.Unquote(literal.Value)
		require.NoError(t, err)
		values[kind.Name] = append(values[kind.Name], value)
		return true
	})
	return values
}

func asStrings(states []State) []string {
	var names []string
	for _, state := range states {
		names = append(names, string(state))
	}
	return names
}

func reachable(from State) []State {
	found := []State{from}
	for i := 0; i < len(found); i++ {
		for _, row := range Table {
			if row.From == found[i] && !slices.Contains(found, row.To) {
				found = append(found, row.To)
			}
		}
	}
	return found
}

func TestAMoveThatIsNoEdgeIsIllegal(t *testing.T) {
	begun := slices.IndexFunc(Table, func(r Row) bool { return r.On == Begun })
	asked := slices.IndexFunc(Table, func(r Row) bool { return r.From == Query && r.When == SaysNew })
	elapsed := slices.IndexFunc(Table, func(r Row) bool { return r.From == Wait && r.On == Elapsed })
	require.NoError(t, TakeInOrder(Table, begun, begun, asked))
	assert.ErrorContains(t, TakeInOrder(Table, elapsed), "illegal transition from Query to Query")
}
