package archive_test

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
)

// The page alone has to describe every field of a statement.
func TestFormatPage_hasEveryField(t *testing.T) {
	content, err := os.ReadFile(filepath.Join("..", "..", "docs", "backup-format.md"))
	require.NoError(t, err)
	_, page, _ := strings.Cut(string(content), "### Cluster, generation, reservation and result")
	page, segments, _ := strings.Cut(page, "## Segments")
	require.NotEmpty(t, segments)
	for begins, statement := range map[string]any{
		"`cluster.json` is the first": archive.Cluster{}, "The history consists of": archive.Generation{}, "A reservation:": archive.Reservation{},
		"A result,": archive.Result{}, "## Full snapshots": archive.Full{},
	} {
		_, table, found := strings.Cut(page, begins)
		require.True(t, found, begins)
		_, table, _ = strings.Cut(table, "|---|---|\n")
		table, _, _ = strings.Cut(table, "\n\n")
		of := reflect.TypeOf(statement)
		for _, field := range reflect.VisibleFields(of) {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if name != "" && len(field.Index) == 1 {
				assert.Contains(t, table, fmt.Sprintf("`%s`", name), "%s.%s", of, field.Name)
			}
		}
	}
}
