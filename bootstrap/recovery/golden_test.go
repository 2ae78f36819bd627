package recovery

import (
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/lifecycle/machine"
)

// update rewrites what is generated from the table; `make dot` sets it.
var update = flag.Bool("update", false, "rewrite the files that are generated from the transition table")

func TestTheCommittedDiagramIsTheTables(t *testing.T) {
	assertGenerated(t, "../../docs/recovery.dot", DOT())
}

func TestTheCommittedMatrixIsTheTables(t *testing.T) {
	assertGenerated(t, "../../testdata/recovery.golden", Matrix())
}

// The picture names the diagram that it was made of, so that this needs no Graphviz.
func TestTheCommittedPictureIsTheDiagrams(t *testing.T) {
	if *update {
		require.NoError(t, os.WriteFile("recovery.svg", []byte(machine.PictureOf(DOT())+"\n"+graphviz(t)), 0o644))
	}
	content, err := os.ReadFile("recovery.svg")
	require.NoError(t, err)
	of, svg, _ := strings.Cut(string(content), "\n")
	assert.Equal(t, machine.PictureOf(DOT()), of, "recovery.svg has drifted from the table; make dot")
	for _, state := range states() {
		assert.Contains(t, svg, `id="state_`+string(state)+`"`)
	}
}

// graphviz lays the diagram out and returns the SVG element alone.
func graphviz(t *testing.T) string {
	t.Helper()
	layout := exec.CommandContext(t.Context(), "dot", "-Tsvg")
	layout.Stdin = strings.NewReader(DOT())
	svg, err := layout.Output()
	require.NoError(t, err, "make dot needs Graphviz for the picture")
	_, element, found := strings.Cut(string(svg), "<svg")
	require.True(t, found)
	return "<svg" + element
}

func TestTheJSONIsTheTable(t *testing.T) {
	text, err := JSON()
	require.NoError(t, err)
	var document struct{ Transitions []Row }
	require.NoError(t, json.Unmarshal([]byte(text), &document))
	assert.Equal(t, Table, document.Transitions)
	assert.True(t, strings.HasPrefix(Mermaid(), "stateDiagram-v2\n"))
}

func assertGenerated(t *testing.T, path, want string) {
	t.Helper()
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(want), 0o644))
	}
	is, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.True(t, want == string(is), "%s has drifted from the table; make dot", path)
}
