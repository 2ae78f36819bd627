package statemachinetest

import (
	"crypto/sha256"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/statemachine"
)

// update rewrites generated files; "make dot" sets it.
var update = flag.Bool("update", false, "rewrite the files that are generated")

// IsUpdate reports whether generated files are being rewritten.
func IsUpdate() bool { return *update }

// AssertGenerated checks that a committed file equals what is generated now. With -update it writes the file.
func AssertGenerated(t *testing.T, path, want string) {
	t.Helper()
	if *update {
		require.NoError(t, os.WriteFile(filepath.Clean(path), []byte(want), 0o644))
	}
	is, err := os.ReadFile(path)
	require.NoError(t, err)
	if want != string(is) {
		assert.Fail(t, path+" has drifted from what it is generated from; make dot", firstDifference(string(is), want))
	}
}

// firstDifference returns the first line that differs.
func firstDifference(is, want string) string {
	old, now := strings.Split(is, "\n"), strings.Split(want, "\n")
	for i := range min(len(old), len(now)) {
		if old[i] != now[i] {
			return fmt.Sprintf("line %d is  %.300s\nand should be %.300s", i+1, old[i], now[i])
		}
	}
	return fmt.Sprintf("it has %d lines and should have %d", len(old), len(now))
}

// headerFor returns the first line of a picture.
func headerFor(dot string) string {
	return fmt.Sprintf("<!-- made by \"make dot\" of %x -->", sha256.Sum256([]byte(dot)))
}

// AssertCommitted checks that the files generated from a table are up to date: the diagram, the matrix and the picture.
func (m Machine) AssertCommitted(t *testing.T, drawing statemachine.Diagram, matrix, diagramPath, matrixPath, picturePath string) {
	t.Helper()
	AssertGenerated(t, diagramPath, drawing.DOT())
	AssertGenerated(t, matrixPath, matrix)
	m.AssertDiagram(t, picturePath, drawing.DOT(), func(svg string) string { return svg })
}

// AssertDiagram checks that a committed picture was made of a diagram and shows all states. Its first line identifies
// the diagram, so that the check needs no Graphviz. With -update, Graphviz lays the diagram out and restyle turns the
// result into the picture.
func (m Machine) AssertDiagram(t *testing.T, path, dot string, restyle func(svg string) string) {
	t.Helper()
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(headerFor(dot)+"\n"+restyle(graphviz(t, dot))), 0o644))
	}
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	source, svg, _ := strings.Cut(string(content), "\n")
	assert.Equal(t, headerFor(dot), source, "%s is outdated; run make dot", path)
	for _, state := range m.StateNames() {
		assert.True(t, strings.Contains(svg, `id="state_`+string(state)+`"`), "%s is missing in %s", state, path)
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
