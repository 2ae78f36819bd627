package exitcode

import (
	"go/ast"
	"go/constant"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/docs"
)

// constants returns the exported statuses in the source by name.
func constants(t *testing.T) map[string]Code {
	files := token.NewFileSet()
	source, err := parser.ParseFile(files, "code.go", nil, 0)
	require.NoError(t, err)
	checked, err := (&types.Config{Importer: importer.ForCompiler(files, "source", nil)}).Check("exitcode", files, []*ast.File{source}, nil)
	require.NoError(t, err)
	found := map[string]Code{}
	for _, name := range checked.Scope().Names() {
		if c, ok := checked.Scope().Lookup(name).(*types.Const); ok && c.Exported() && c.Type().String() == "exitcode.Code" {
			number, exact := constant.Int64Val(c.Val())
			require.True(t, exact)
			found[name] = Code(number)
		}
	}
	return found
}

// otherCommands maps the statuses of the other commands to their descriptions in the docs.
var otherCommands = map[string]string{
	"ToolFailed": "", "NotTold": "", // these codes are not documented
	"NoAnswer": "69 if nothing responds", "MemberNotReady": "75 if the member is not ready",
	"StoreAway": "69 if the store cannot be used", "BackupFailed": "70 if", "ChecksFailed": "75 if a check failed", "NotKept": "78 if",
}

func TestStatuses_areDocumented(t *testing.T) {
	documented := map[string]bool{}
	for _, row := range docs.Table(t, "status", "meaning") {
		documented[row[0]] = true
	}
	all, runs := constants(t), map[string]bool{"128+n": true}
	require.Equal(t, OutOfTime, all["OutOfTime"])
	for name, code := range all {
		if description, ok := otherCommands[name]; ok {
			assert.Contains(t, docs.Text(t), description)
			continue
		}
		number := strconv.Itoa(int(code))
		runs[number] = true
		assert.False(t, strings.HasPrefix(code.String(), "status "), "give %s a description in code.go", name)
		assert.True(t, documented[number], "add %s (%s) to the table of exit statuses in README.md or docs/*.md", number, name)
	}
	assert.Equal(t, runs, documented, "the documentation lists a status that start-etcd never returns")
	assert.Len(t, runs, 1+len(all)-len(otherCommands), "two statuses of start-etcd have the same number")
}
