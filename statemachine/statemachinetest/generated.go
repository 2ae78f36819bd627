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

// update rewrites generated files. "make dot" sets it.
var update = flag.Bool("update", false, "rewrite generated files")

// IsUpdate reports whether the tests rewrite generated files.
func IsUpdate() bool { return *update }

// AssertGenerated asserts that a committed file is up to date. With -update, AssertGenerated writes the file first.
func AssertGenerated(t *testing.T, path, want string) {
	t.Helper()
	if *update {
		require.NoError(t, os.WriteFile(filepath.Clean(path), []byte(want), 0o644))
	}
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	if want != string(got) {
		assert.Fail(t, path+` is outdated; run "make dot"`, firstDifference(string(got), want))
	}
}

// firstDifference describes the first line that differs, or the numbers of lines.
func firstDifference(got, want string) string {
	gotLines, wantLines := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range min(len(gotLines), len(wantLines)) {
		if gotLines[i] != wantLines[i] {
			return fmt.Sprintf("line %d:\ngot  %.300s\nwant %.300s", i+1, gotLines[i], wantLines[i])
		}
	}
	return fmt.Sprintf("got %d lines, want %d", len(gotLines), len(wantLines))
}

// headerFor returns the first line of the picture of a graph, which contains the graph's SHA-256.
func headerFor(dot string) string {
	return fmt.Sprintf("<!-- made by \"make dot\" of %x -->", sha256.Sum256([]byte(dot)))
}

// AssertCommitted asserts that the diagram, the matrix and the picture of a table are up to date.
func (m Machine) AssertCommitted(t *testing.T, drawing statemachine.Diagram, matrix, diagramPath, matrixPath, picturePath string) {
	t.Helper()
	AssertGenerated(t, diagramPath, drawing.DOT())
	AssertGenerated(t, matrixPath, matrix)
	m.AssertDiagram(t, picturePath, drawing.DOT(), func(svg string) string { return svg })
}

// AssertDiagram asserts that a committed picture was generated from a graph and shows all states. The first line of
// the picture identifies the graph, so the check does not require Graphviz. With -update, AssertDiagram first renders
// the graph with Graphviz and restyles the result.
func (m Machine) AssertDiagram(t *testing.T, path, dot string, restyle func(svg string) string) {
	t.Helper()
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(headerFor(dot)+"\n"+restyle(graphviz(t, dot))), 0o644))
	}
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	source, svg, _ := strings.Cut(string(content), "\n")
	assert.Equal(t, headerFor(dot), source, `%s is outdated; run "make dot"`, path)
	for _, state := range m.StateNames() {
		assert.True(t, strings.Contains(svg, `id="state_`+string(state)+`"`), "%s is missing in %s", state, path)
	}
}

// graphviz renders a graph and returns its SVG element.
func graphviz(t *testing.T, dot string) string {
	t.Helper()
	layout := exec.CommandContext(t.Context(), "dot", "-Tsvg")
	layout.Stdin = strings.NewReader(dot)
	svg, err := layout.Output()
	require.NoError(t, err, `"make dot" requires Graphviz`)
	_, element, found := strings.Cut(string(svg), "<svg")
	require.True(t, found)
	return "<svg" + element
}
