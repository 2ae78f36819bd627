package runtime

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/docs"
	"etcd-wrapper/readiness/status"
)

// ExitClasses must contain all ways in which a run can end, as defined by packages exitcode and status.
func TestLastExits_areComplete(t *testing.T) {
	words := constants(t, "../../exitcode/record.go", func(_, kind string) bool { return kind == "Word" })
	kinds := constants(t, "../../readiness/status/document.go", func(name, _ string) bool { return strings.HasPrefix(name, "Exit") })
	assert.ElementsMatch(t, append(words, kinds...), status.ExitClasses(),
		"ExitClasses in readiness/status/document.go must list all Word constants of the exit record and all Exit constants")
	row := docs.Find(docs.Table(t, "field", "meaning"), "last_exit")
	require.NotNil(t, row)
	for _, kind := range status.ExitClasses() {
		assert.Contains(t, docs.Quoted(row[1]), kind, "docs/api.md does not document the last_exit value %q", kind)
	}
}

// constants parses a Go file and returns the values of the string constants for which chosen returns true. chosen
// receives the name of a constant and the name of its type.
func constants(t *testing.T, path string, chosen func(name, kind string) bool) (texts []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	require.NoError(t, err)
	ast.Inspect(file, func(node ast.Node) bool {
		spec, ok := node.(*ast.ValueSpec)
		if !ok || len(spec.Values) != 1 {
			return true
		}
		kind, _ := spec.Type.(*ast.Ident)
		literal, ok := spec.Values[0].(*ast.BasicLit)
		if ok && literal.Kind == token.STRING && chosen(spec.Names[0].Name, kindOf(kind)) {
			text, err := strconv.Unquote(literal.Value)
			require.NoError(t, err)
			texts = append(texts, text)
		}
		return true
	})
	require.NotEmpty(t, texts, path)
	return texts
}

func kindOf(kind *ast.Ident) string {
	if kind == nil {
		return ""
	}
	return kind.Name
}
