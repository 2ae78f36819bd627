package lifecycle_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	. "etcd-wrapper/lifecycle"
	"etcd-wrapper/lifecycle/machine"
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
	for _, state := range stateNames() {
		if slices.Contains(BeforeEtcd, state) {
			continue
		}
		for _, row := range Table {
			if slices.Contains(reachable(state), row.From) {
				assert.NotContains(t, row.Do, AskInit, "%s leads to %s", state, row.From)
				assert.NotContains(t, row.Do, AskFullInit, "%s leads to %s", state, row.From)
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

// The last row of a state and an event answers whatever the others leave; none comes after it.
func TestOnlyTheLastRowOfAStateAndAnEventIsUnguarded(t *testing.T) {
	for _, state := range stateNames() {
		for _, event := range eventNames() {
			rows := rowsFor(state, event)
			for i, row := range rows {
				assert.Equal(t, i == len(rows)-1, row.When == Always, "%s, %s, row %d of %d", state, event, i+1, len(rows))
			}
		}
	}
}

func rowsFor(state State, event Event) []Row {
	var rows []Row
	for _, row := range Table {
		if row.From == state && row.On == event {
			rows = append(rows, row)
		}
	}
	return rows
}

// Rows of one state and one event that stood in two places would be read as if they did not depend on each other.
func TestRowsThatDependOnEachOtherStandTogether(t *testing.T) {
	last := map[[2]string]int{}
	for i, entry := range Written {
		for _, from := range entry.From.Each() {
			key := [2]string{string(from), string(entry.On)}
			if before, seen := last[key]; seen {
				assert.Equal(t, i-1, before, "%v stands in two places", key)
			}
			last[key] = i
		}
	}
}

// A state that is bounded by its timer has it set by whatever leads there; any other begins with work.
func TestEveryVisitBeginsWithATimerOrWithWork(t *testing.T) {
	for _, row := range Table {
		if row.From == row.To {
			continue
		}
		slow, timer, _ := split(row.Do)
		switch bound := boundOf(row.To); bound {
		case ByTimer:
			assert.True(t, timer, "%s waits for its timer, and the row for %q in %s does not set it", row.To, row.On, row.From)
		case ByCalls, NoBound:
			assert.True(t, timer || len(slow) > 0, "%s would wait for nothing after %q in %s", row.To, row.On, row.From)
		case AtEnd:
			assert.Empty(t, row.Do, "nothing is done at the end")
		}
	}
}

func boundOf(state State) Bound {
	return States[slices.IndexFunc(States, func(s StateInfo) bool { return s.Name == state })].Bound
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

func TestTheLibrarysMachineHasExactlyTheTablesEdges(t *testing.T) {
	want := map[string][]string{}
	for _, row := range Table {
		edge := string(row.On)
		if row.When != Always {
			edge += " [" + string(row.When) + "]"
		}
		want[string(row.From)] = append(want[string(row.From)], edge+" to "+string(row.To))
	}
	for _, state := range stateNames() {
		assert.ElementsMatch(t, want[string(state)], machine.Edges(Table, state), "%s", state)
	}
}

func stateNames() []State {
	var names []State
	for _, state := range States {
		names = append(names, state.Name)
	}
	return names
}

// eventNames relies on Elsewhere answering every event, which TestTheVocabularyIsComplete checks against the source.
func eventNames() []Event {
	var names []Event
	for _, answer := range Elsewhere {
		names = append(names, answer.On)
	}
	return names
}

func hasRow(state State, event Event) bool { return len(rowsFor(state, event)) > 0 }
