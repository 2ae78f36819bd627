package deploy

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"etcd-wrapper/cmd/commandline"
)

// flags are those of start-etcd.
func flags(t *testing.T) map[string]bool {
	t.Helper()
	known := map[string]bool{}
	var collect func(of reflect.Type)
	collect = func(of reflect.Type) {
		for field := range of.Fields() {
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

func TestEveryFlagInTheManifestsIsOneOfTheProgram(t *testing.T) {
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

// What is patched by its place is a list of operations and not an object.
func TestEveryFlagThatAPatchAddsIsOneOfTheProgram(t *testing.T) {
	known, checked := flags(t), 0
	files, err := filepath.Glob("components/*/arguments.yaml")
	require.NoError(t, err)
	for _, file := range files {
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		var operations []struct{ Path, Value string }
		require.NoError(t, yaml.Unmarshal(content, &operations))
		for _, operation := range operations {
			if !strings.Contains(operation.Path, "/containers/0/args/") {
				continue
			}
			name, _, _ := strings.Cut(operation.Value, "=")
			assert.True(t, known[strings.TrimPrefix(name, "--")], "%s: start-etcd has no flag %s", file, name)
			checked++
		}
	}
	assert.NotZero(t, checked)
}

func TestEveryVariableInTheManifestsIsAFlag(t *testing.T) {
	known := flags(t)
	const prefix = "ETCD_WRAPPER_"
	for path, parts := range documents(t) {
		var named []string
		each(listed(parts), func(m document) {
			if name, ok := m["name"].(string); ok && strings.HasPrefix(name, prefix) {
				named = append(named, name)
			}
			literals, _ := m["literals"].([]any)
			for _, literal := range literals {
				if name, _, _ := strings.Cut(literal.(string), "="); strings.HasPrefix(name, prefix) {
					named = append(named, name)
				}
			}
		})
		for _, name := range named {
			flag := strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(name, prefix)), "_", "-")
			assert.True(t, known[flag], "%s: %s is no flag of start-etcd", path, name)
		}
	}
}
