package lifecycle_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	. "etcd-wrapper/lifecycle"
	"etcd-wrapper/statemachine/statemachinetest"
)

// tested is the machine for what every machine's tests ask. That Elsewhere answers every event is checked against the source.
var tested = statemachinetest.Machine{Table: Table, Elsewhere: Elsewhere, States: States, Guards: declared[Guard]()}

func TestTheTableIsWhole(t *testing.T) {
	tested.AssertOnlyLastUnguarded(t)
	tested.AssertLegality(t)
	statemachinetest.AssertTogether(t, Written)
}

func TestEveryStateIsReachedFromQuery(t *testing.T) {
	assert.ElementsMatch(t, tested.StateNames(), tested.Reachable(Query))
}

func TestTheEndIsReachedFromEveryState(t *testing.T) {
	for _, state := range tested.StateNames() {
		assert.Contains(t, tested.Reachable(state), Terminated, "from %s", state)
	}
}

func TestNothingLeadsOutOfTerminated(t *testing.T) {
	assert.Equal(t, []State{Terminated}, tested.Reachable(Terminated))
}

// Once etcd may hold the data, no way leads back to where an initialization is asked for.
func TestNoWayLeadsFromAnEtcdToAnInitialization(t *testing.T) {
	for _, state := range tested.StateNames() {
		if slices.Contains(BeforeEtcd, state) {
			continue
		}
		for _, row := range Table {
			if slices.Contains(tested.Reachable(state), row.From) {
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

func TestAMoveThatIsNoEdgeIsIllegal(t *testing.T) {
	begun := slices.IndexFunc(Table, func(r Row) bool { return r.On == Begun })
	asked := slices.IndexFunc(Table, func(r Row) bool { return r.From == Query && r.When == SaysNew })
	elapsed := slices.IndexFunc(Table, func(r Row) bool { return r.From == Wait && r.On == Elapsed })
	require.NoError(t, TakeInOrder(Table, begun, begun, asked))
	assert.ErrorContains(t, TakeInOrder(Table, elapsed), "illegal transition from Query to Query")
}
