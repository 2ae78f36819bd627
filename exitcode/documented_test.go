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
		if c, is := checked.Scope().Lookup(name).(*types.Const); is && c.Exported() && c.Type().String() == "exitcode.Code" {
			number, exact := constant.Int64Val(c.Val())
			require.True(t, exact)
			found[name] = Code(number)
		}
	}
	return found
}

// visitors maps the statuses of the other commands to their descriptions in the docs.
var visitors = map[string]string{
	"ToolFailed": "", "NotTold": "", // codes that are not documented
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
		if promise, is := visitors[name]; is {
			assert.Contains(t, docs.Text(t), promise)
			continue
		}
		number := strconv.Itoa(int(code))
		runs[number] = true
		assert.False(t, strings.HasPrefix(code.String(), "status "), "give %s a description in code.go", name)
		assert.True(t, documented[number], "put %s (%s) into the table of exit statuses of README.md or docs/*.md", number, name)
	}
	assert.Equal(t, runs, documented, "the documentation names a status that no run ends with")
	assert.Len(t, runs, 1+len(all)-len(visitors), "two meanings have one number: no reader of a pod's status can tell them apart")
}
