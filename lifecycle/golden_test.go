package lifecycle_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/docs"
	. "etcd-wrapper/lifecycle"
	"etcd-wrapper/lifecycle/machine"
)

// update rewrites what is generated from the table; `make dot` sets it.
var update = flag.Bool("update", false, "rewrite the files that are generated from the transition table")

func TestTheCommittedDiagramIsTheTables(t *testing.T) {
	assertGenerated(t, "../statemachine.dot", DOT(Table))
}

func TestTheCommittedMatrixIsTheTables(t *testing.T) {
	assertGenerated(t, "../testdata/matrix.golden", Matrix(NewRules(Table, Elsewhere)))
}

func TestTheReadmesDiagramIsTheTables(t *testing.T) {
	before, rest, found := strings.Cut(readme(t), "```mermaid\n")
	require.True(t, found, "the README has a Mermaid diagram")
	_, after, found := strings.Cut(rest, "```\n")
	require.True(t, found, "the README's Mermaid diagram ends")
	assertGenerated(t, "../README.md", before+"```mermaid\n"+Mermaid(Table)+"```\n"+after)
}

// The picture names the diagram that it was made of, so that this needs no Graphviz.
func TestTheCommittedPictureIsTheDiagrams(t *testing.T) {
	if *update {
		require.NoError(t, os.WriteFile("statemachine.svg", []byte(machine.PictureOf(DOT(Table))+"\n"+graphviz(t, DOT(Table))), 0o644))
	}
	content, err := os.ReadFile("statemachine.svg")
	require.NoError(t, err)
	of, svg, _ := strings.Cut(string(content), "\n")
	assert.Equal(t, machine.PictureOf(DOT(Table)), of, "statemachine.svg has drifted from the table; make dot")
	for _, state := range States {
		assert.True(t, strings.Contains(svg, `id="state_`+string(state.Name)+`"`), "%s is in the picture", state.Name)
	}
	if !*update {
		assert.True(t, svg == SVG(), "what is embedded is what is committed")
	}
}

// graphviz lays a graph out and returns the SVG element alone.
func graphviz(t *testing.T, dot string) string {
	t.Helper()
	layout := exec.CommandContext(t.Context(), "dot", "-Tsvg")
	layout.Stdin = strings.NewReader(dot)
	svg, err := layout.Output()
	require.NoError(t, err, "make dot needs Graphviz for the picture")
	_, element, found := strings.Cut(string(svg), "<svg")
	require.True(t, found)
	return "<svg" + element
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

func assertGenerated(t *testing.T, path, want string) {
	t.Helper()
	if *update {
		require.NoError(t, os.WriteFile(filepath.Clean(path), []byte(want), 0o644))
	}
	is, err := os.ReadFile(path)
	require.NoError(t, err)
	if want != string(is) {
		assert.Fail(t, path+" has drifted from the table; make dot", firstDifference(string(is), want))
	}
}

// firstDifference is the first line that differs: whole files would bury it.
func firstDifference(is, want string) string {
	old, now := strings.Split(is, "\n"), strings.Split(want, "\n")
	for i := range min(len(old), len(now)) {
		if old[i] != now[i] {
			return fmt.Sprintf("line %d is  %.300s\nand should be %.300s", i+1, old[i], now[i])
		}
	}
	return fmt.Sprintf("it has %d lines and should have %d", len(old), len(now))
}
