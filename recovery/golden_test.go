package recovery

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/statemachine/statemachinetest"
)

func TestTheCommittedDiagramIsTheTables(t *testing.T) {
	statemachinetest.AssertGenerated(t, "../docs/recovery.dot", DOT())
}

func TestTheCommittedMatrixIsTheTables(t *testing.T) {
	statemachinetest.AssertGenerated(t, "../testdata/recovery.golden", NewRules(Table, Elsewhere).Matrix(States))
}

func TestTheCommittedPictureIsTheDiagrams(t *testing.T) {
	tested.AssertPicture(t, "recovery.svg", DOT())
}

func TestTheJSONIsTheTable(t *testing.T) {
	text, err := JSON()
	require.NoError(t, err)
	var document struct{ Transitions []Row }
	require.NoError(t, json.Unmarshal([]byte(text), &document))
	assert.Equal(t, Table, document.Transitions)
	assert.True(t, strings.HasPrefix(Mermaid(), "stateDiagram-v2\n"))
}
