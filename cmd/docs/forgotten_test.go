package docs

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/commandline"
)

// stores returns the packages in backup/store that implement store.Store, and whether their tests run the contract
// tests.
func stores(t *testing.T, folder string) (contract map[string]bool) {
	t.Helper()
	contract = map[string]bool{}
	files, err := filepath.Glob(filepath.Join(folder, "*", "*.go"))
	require.NoError(t, err)
	put := regexp.MustCompile(`(?m)^func \(\w+ \*?\w+\) Put\((ctx|_) context\.Context, |^\twire\.Bucket$`)
	for _, file := range files {
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		name := filepath.Base(filepath.Dir(file))
		if strings.HasSuffix(file, "_test.go") {
			if strings.Contains(string(content), "storetest.Run(") {
				contract[name] = true
			}
		} else if put.Match(content) && name != "wire" {
			contract[name] = contract[name] || false
		}
	}
	return contract
}

func TestStores_runTheContract(t *testing.T) {
	found := stores(t, filepath.Join(root(t), "backup", "store"))
	assert.Greater(t, len(found), 4)
	for name, runs := range found {
		assert.True(t, runs, "call storetest.Run in a test of backup/store/%s", name)
	}
}

func TestStores_missingContract(t *testing.T) {
	folder := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(folder, "ftp"), 0o700))
	code := "package ftp\n\nfunc (s *Store) Put(ctx context.Context, name string, content io.Reader) error {\n"
	require.NoError(t, os.WriteFile(filepath.Join(folder, "ftp", "ftp.go"), []byte(code), 0o600))
	assert.Equal(t, map[string]bool{"ftp": false}, stores(t, folder))
}

// withoutEffect lists the fields of flags that are accepted, because the pods of etcd-druid set them, but have no
// effect.
var withoutEffect = []string{"EtcdServerName", "EtcdClientPort"}

// unread returns the fields of flags that the given code does not read.
func unread(flags reflect.Type, code string) (fields []string) {
	for field := range flags.Fields() {
		switch {
		case field.Tag.Get("name") != "":
			if !regexp.MustCompile(`\.` + field.Name + `\b`).MatchString(code) {
				fields = append(fields, field.Name)
			}
		case field.Type.Kind() == reflect.Struct:
			fields = append(fields, unread(field.Type, code)...)
		}
	}
	return fields
}

func TestFlags_areRead(t *testing.T) {
	found := unread(reflect.TypeFor[commandline.StartEtcd](), sources(t))
	slices.Sort(found)
	slices.Sort(withoutEffect)
	for _, field := range found {
		assert.Contains(t, withoutEffect, field, "no code reads the flag StartEtcd.%s: use or remove it", field)
	}
	assert.Equal(t, []string{"Gone"}, unread(reflect.TypeFor[struct {
		Gone string `name:"gone"`
		Here string `name:"here"`
	}](), "f.Here == 1"))
}
