package backups

import (
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/docs"
)

func TestEveryFieldOfADocumentIsDocumented(t *testing.T) {
	rows := docs.Table(t, "document of", "fields")
	for command, document := range map[string]any{
		"list": Overview{}, "now": Made{}, "verify": Verified{}, "export": Exported{}, "prune": Pruned{},
	} {
		row := docs.Find(rows, command)
		require.NotNil(t, row, command)
		for _, field := range fields(reflect.TypeOf(document)) {
			assert.Contains(t, docs.Quoted(row[1]), field, "put it into the row of %s", command)
		}
	}
}

// fields are the names in JSON of a document's fields, and of those of documents of this package inside it.
func fields(document reflect.Type) (names []string) {
	for document.Kind() == reflect.Pointer || document.Kind() == reflect.Slice {
		document = document.Elem()
	}
	if document.Kind() != reflect.Struct || !strings.HasPrefix(document.PkgPath(), "etcd-wrapper/") {
		return nil
	}
	for i := range document.NumField() {
		if name, _, _ := strings.Cut(document.Field(i).Tag.Get("json"), ","); name != "" {
			names = append(append(names, name), fields(document.Field(i).Type)...)
		}
	}
	return names
}
