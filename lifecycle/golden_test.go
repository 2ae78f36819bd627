package lifecycle_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/docs"
	. "etcd-wrapper/lifecycle"
	"etcd-wrapper/statemachine/statemachinetest"
)

func TestTheCommittedDiagramIsTheTables(t *testing.T) {
	statemachinetest.AssertGenerated(t, "../statemachine.dot", DOT(Table))
}

func TestTheCommittedMatrixIsTheTables(t *testing.T) {
	statemachinetest.AssertGenerated(t, "../testdata/matrix.golden", NewRules(Table, Elsewhere).Matrix(States))
}

func TestTheReadmesDiagramIsTheTables(t *testing.T) {
	before, rest, found := strings.Cut(readme(t), "```mermaid\n")
	require.True(t, found, "the README has a Mermaid diagram")
	_, after, found := strings.Cut(rest, "```\n")
	require.True(t, found, "the README's Mermaid diagram ends")
	statemachinetest.AssertGenerated(t, "../README.md", before+"```mermaid\n"+Mermaid(Table)+"```\n"+after)
}

func TestTheCommittedPictureIsTheDiagrams(t *testing.T) {
	tested.AssertPicture(t, "statemachine.svg", DOT(Table))
}

func TestTheDiagramIsTheSameEveryTime(t *testing.T) {
	for range 20 {
		require.Equal(t, DOT(Table), DOT(Table))
	}
}

func TestTheJSONIsTheTable(t *testing.T) {
	text, err := JSON(Table)
	require.NoError(t, err)
	var document struct {
		States      []StateInfo
		Transitions []Row
		Elsewhere   []Default
	}
	require.NoError(t, json.Unmarshal([]byte(text), &document))
	assert.Equal(t, Table, document.Transitions)
	assert.Len(t, document.States, len(States))
	for i, state := range document.States {
		state.Bound = States[i].Bound // the tests' own
		assert.Equal(t, States[i], state)
	}
	assert.Equal(t, Elsewhere, document.Elsewhere)
}

func readme(t *testing.T) string {
	t.Helper()
	content, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	return string(content)
}

// The documentation says the same about each state as the diagram does, numbers included.
func TestTheDocumentedStatesAreTheTables(t *testing.T) {
	rows := docs.Table(t, "state", "what happens", "bounded by")
	require.Len(t, rows, len(States), "the table of states of docs/*.md has a row for each state and no other")
	for i, state := range States {
		assert.Equal(t, string(state.Name), rows[i][0], "the states stand in the order of a run")
		assert.NotEmpty(t, rows[i][1], "say what happens in %s", state.Name)
		assert.Equal(t, state.Deadline, rows[i][2], "what bounds %s, in the table of states of docs/*.md", state.Name)
	}
}
