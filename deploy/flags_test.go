package deploy

import (
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/commandline"
)

// flags returns the flags of start-etcd.
func flags(t *testing.T) map[string]bool {
	t.Helper()
	known := map[string]bool{}
	var collect func(t reflect.Type)
	collect = func(t reflect.Type) {
		for field := range t.Fields() {
			if name := field.Tag.Get("name"); name != "" {
				known[name] = true
			} else if field.Type.Kind() == reflect.Struct {
				collect(field.Type)
			}
		}
	}
	collect(reflect.TypeFor[commandline.StartEtcd]())
	require.True(t, known["standalone"])
	return known
}

func TestManifestFlags_exist(t *testing.T) {
	known, checked := flags(t), 0
	for path, parts := range documents(t) {
		each(listed(parts), func(m document) {
			arguments, _ := m["args"].([]any)
			if m["name"] != "etcd" || len(arguments) == 0 {
				return
			}
			assert.Equal(t, "start-etcd", arguments[0], path)
			for _, argument := range arguments[1:] {
				name, _, _ := strings.Cut(argument.(string), "=")
				assert.True(t, known[strings.TrimPrefix(name, "--")], "%s: start-etcd has no flag %s", path, name)
				checked++
			}
		})
	}
	assert.NotZero(t, checked)
}

func TestManifestVariables_areFlags(t *testing.T) {
	known := flags(t)
	const prefix = "ETCD_WRAPPER_"
	checked := map[string]bool{}
	for path, parts := range documents(t) {
		var named []string
		each(listed(parts), func(m document) {
			if name, ok := m["name"].(string); ok && strings.HasPrefix(name, prefix) {
				named = append(named, name)
			}
		})
		for _, name := range named {
			flag := strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(name, prefix)), "_", "-")
			assert.True(t, known[flag], "%s: start-etcd has no flag for %s", path, name)
			checked[flag] = true
		}
	}
	assert.GreaterOrEqual(t, len(checked), 15)
}
