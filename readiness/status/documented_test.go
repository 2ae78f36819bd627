package status_test

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"etcd-wrapper/cmd/docs"
	"etcd-wrapper/readiness/status"
)

// fields returns the types of a struct's fields by JSON name. It looks through pointers and slices.
func fields(typ reflect.Type) map[string]reflect.Type {
	for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
		typ = typ.Elem()
	}
	found := map[string]reflect.Type{}
	if typ.Kind() != reflect.Struct || typ == reflect.TypeFor[time.Time]() {
		return found
	}
	for _, field := range reflect.VisibleFields(typ) {
		if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); !field.Anonymous {
			found[name] = field.Type
		}
	}
	return found
}

func TestEveryFieldOfTheDocumentIsDocumented(t *testing.T) {
	rows := docs.Table(t, "field", "meaning")
	document := fields(reflect.TypeFor[status.Document]())
	for name, kind := range document {
		row := docs.Find(rows, name)
		if !assert.NotNil(t, row, "add %s to the table of fields in README.md or docs/*.md", name) {
			continue
		}
		for inner := range fields(kind) {
			assert.Contains(t, docs.Quoted(row[1]), inner, "add the field to the row of %s", name)
		}
	}
	for _, name := range docs.Named(rows) {
		_, exists := document[name]
		assert.True(t, exists, "%s is documented but is not a field: remove or rename it", name)
	}
}

func TestEveryFieldHasANameInJSON(t *testing.T) {
	var visit func(reflect.Type)
	visit = func(typ reflect.Type) {
		for name, kind := range fields(typ) {
			assert.Regexp(t, "^[a-z_]+$", name, "in %s", typ)
			visit(kind)
		}
	}
	visit(reflect.TypeFor[status.Document]())
}
