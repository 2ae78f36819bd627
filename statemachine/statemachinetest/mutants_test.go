package statemachinetest

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"etcd-wrapper/statemachine"
)

// door opens on a knock unless it is locked.
var door = Machine{
	Table: []statemachine.Row{
		{From: "closed", On: "knocked", When: "locked", To: "closed", Do: []statemachine.Action{"call"}},
		{From: "closed", On: "knocked", To: "open", Do: []statemachine.Action{"call", "turn"}},
	},
	Elsewhere: []statemachine.Default{{On: "knocked", Answer: statemachine.Ignore}, {On: "blown", Answer: statemachine.Reject}},
	States:    []statemachine.StateInfo{{Name: "closed"}, {Name: "open", Bound: statemachine.AtEnd}},
	Guards:    []statemachine.Guard{"locked"},
}

func TestMutantsChangeATableInEveryWay(t *testing.T) {
	changes := map[string][]string{}
	for _, m := range door.mutants() {
		changes[m.where] = append(changes[m.where], m.change)
	}
	assert.Equal(t, map[string][]string{
		"row 0 (closed, knocked [locked])": {"dropped", "redirected to open", "guarded by []", "guarded by [never]", "without call"},
		"row 1 (closed, knocked)": {
			"dropped", "redirected to closed", "guarded by [locked]", "guarded by [never]",
			"without call", "without turn", "with turn earlier", "moved up",
		},
		"blown elsewhere": {"answered with ignore"},
	}, changes)
	assert.Equal(t, []statemachine.State{"closed", "open"}, door.Reachable("closed"))
	assert.Equal(t, []statemachine.State{"open"}, door.Reachable("open"))
}
