package etcdconf

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// etcdSource parses the source file that declares etcd's configuration file format.
func etcdSource(t *testing.T) *ast.File {
	t.Helper()
	dir, err := exec.Command("go", "list", "-f", "{{.Dir}}", "go.etcd.io/etcd/server/v3/embed").Output()
	require.NoError(t, err)
	path := filepath.Join(strings.TrimSpace(string(dir)), "config.go")
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	require.NoError(t, err)
	return file
}

// declaredKeys returns the JSON names of the fields of an unexported struct in etcd.
func declaredKeys(t *testing.T, file *ast.File, name string) (keys []string) {
	t.Helper()
	declared, ok := file.Scope.Lookup(name).Decl.(*ast.TypeSpec).Type.(*ast.StructType)
	require.True(t, ok)
	for _, field := range declared.Fields.List {
		tag, err := strconv.Unquote(field.Tag.Value)
		require.NoError(t, err)
		key, _, _ := strings.Cut(reflect.StructTag(tag).Get("json"), ",")
		keys = append(keys, key)
	}
	return keys
}

func TestFileKeys_matchEtcd(t *testing.T) {
	source := etcdSource(t)
	assert.ElementsMatch(t, declaredKeys(t, source, "configJSON"), slices.Collect(maps.Keys(keysOf(reflect.TypeFor[fileKeys]()))))
	assert.ElementsMatch(t, declaredKeys(t, source, "securityConfig"), slices.Collect(maps.Keys(keysOf(reflect.TypeFor[security]()))))
}

func TestRenamedKeys_matchEtcd(t *testing.T) {
	migrations := etcdSource(t).Scope.Lookup("experimentalFlagMigrationMap").Decl.(*ast.ValueSpec).Values[0].(*ast.CompositeLit)
	keys := keysOf(reflect.TypeFor[settings]())
	for _, element := range migrations.Elts {
		pair := element.(*ast.KeyValueExpr)
		old, _ := strconv.Unquote(pair.Key.(*ast.BasicLit).Value)
		current, _ := strconv.Unquote(pair.Value.(*ast.BasicLit).Value)
		if keys[old] != nil && keys[current] != nil { // some keys exist only as flags
			assert.Equal(t, current, replacement(old, keys), old)
		}
	}
	for old := range keys {
		if current := replacement(old, keys); current != "" {
			assert.Equal(t, keys[old], keys[current], old)
		}
	}
}

func TestWrapperOwnedKeys_exist(t *testing.T) {
	keys := keysOf(reflect.TypeFor[settings]())
	for _, key := range wrapperOwned {
		assert.Contains(t, keys, key)
	}
}

// paths returns the paths of all keys. The path of a key in a section starts with the name of the section.
func paths(t reflect.Type) (all [][]string) {
	for name, inner := range keysOf(t) {
		all = append(all, []string{name})
		if inner.Kind() == reflect.Struct {
			for _, rest := range paths(inner) {
				all = append(all, append([]string{name}, rest...))
			}
		}
	}
	return all
}

func TestParse_neverPanics(t *testing.T) {
	all := paths(reflect.TypeFor[settings]())
	require.Greater(t, len(all), 100)
	for _, path := range all {
		for _, value := range []string{
			"x", "''", "[]", "[x]", "[null]", "{}", "{x: 1}", "-1", "0", "1", "1.5", "1e99", "18446744073709551616", "true", "null", "http://a:1",
		} {
			yaml := "data-dir: /var/etcd/data\n"
			if path[0] == "data-dir" {
				yaml = ""
			}
			yaml += strings.Join(path, ": {") + ": " + value + strings.Repeat("}", len(path)-1) + "\n"
			checked, err := Parse([]byte(yaml))
			if err == nil {
				require.True(t, filepath.IsAbs(checked.Etcd.Dir), yaml)
				continue
			}
			var keyError *KeyError
			require.ErrorAs(t, err, &keyError, yaml)
			require.NotContains(t, keyError.Problem, "panicked", yaml)
		}
	}
}
