package docs

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	// target matches a Makefile target that `make help` lists.
	target = regexp.MustCompile(`(?m)^([a-z-]+):.*## \S`)
	// command matches a make command in backquotes or at the start of a line of code.
	command = regexp.MustCompile("(?m)(?:`|^ {4,})make ([a-z-]+)")
	// projectPath matches a path in one of the top-level directories.
	projectPath = regexp.MustCompile(`^(cmd|lifecycle|statemachine|bootstrap|member|recovery|backup|internal|readiness|exitcode|testdata|docs|deploy)(/[\w.-]+)*$`)
)

func TestMakeTargetsInPages_exist(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(root(t), "Makefile"))
	require.NoError(t, err)
	listed, named := map[string]bool{}, map[string]bool{}
	for _, match := range target.FindAllStringSubmatch(string(makefile), -1) {
		listed[match[1]] = true
	}
	for name, content := range pages(t) {
		for _, call := range command.FindAllStringSubmatch(content, -1) {
			named[call[1]] = true
			assert.True(t, listed[call[1]], `"make help" does not list "make %s", which is used in %s`, call[1], name)
		}
	}
	for name := range listed {
		assert.True(t, named[name], `README.md or docs/*.md must describe "make %s"`, name)
	}
}

func TestPathsInPages_exist(t *testing.T) {
	checked := 0
	for name, content := range pages(t) {
		for _, quoted := range Quoted(content) {
			if projectPath.MatchString(quoted) {
				checked++
				_, err := os.Stat(filepath.Join(root(t), quoted))
				assert.NoError(t, err, "%s refers to a path that does not exist", name)
			}
		}
	}
	assert.NotZero(t, checked)
}

// No two rows of a table may have the same first cell, because one of them would become outdated.
func TestTables_haveNoDuplicateRows(t *testing.T) {
	for name, content := range pages(t) {
		seen := map[string]bool{}
		for line := range strings.Lines(content) {
			row, ok := cells(line)
			switch {
			case !ok:
				clear(seen)
			case strings.HasPrefix(row[0], "`"):
				assert.False(t, seen[row[0]], "a table in %s has two rows for %s: merge them", name, row[0])
				seen[row[0]] = true
			}
		}
	}
}

// durationField matches a log call with a duration and captures the name of the field.
var durationField = regexp.MustCompile(`\.Dur\("([^"]+)"`)

// The names of duration fields in the log must end with their unit, _ms, as documented in docs/log.md. The console
// format relies on this suffix.
func TestLogDurations_nameTheirUnit(t *testing.T) {
	checked, top := 0, root(t)
	err := filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() && path != top && (strings.HasPrefix(entry.Name(), ".") || entry.Name() == "bin") {
			return fs.SkipDir
		}
		if entry.IsDir() || filepath.Ext(path) != ".go" {
			return nil
		}
		content, err := os.ReadFile(path)
		for _, duration := range durationField.FindAllStringSubmatch(string(content), -1) {
			checked++
			assert.True(t, strings.HasSuffix(duration[1], "_ms"), "%s: rename the field %s to %s_ms", path, duration[1], duration[1])
		}
		return err
	})
	require.NoError(t, err)
	assert.NotZero(t, checked)
}

func TestPackages_areDocumentedAndListed(t *testing.T) {
	rows := Table(t, "package", "owns")
	packages := packages(t)
	for folder, comment := range packages {
		assert.NotEmpty(t, comment, "%s needs a package comment that describes what the package does and which package calls it", folder)
		assert.NotNil(t, Find(rows, folder), "add %s to the table of packages in docs/*.md", folder)
	}
	for _, name := range Named(rows) {
		if projectPath.MatchString(name) {
			assert.Contains(t, packages, name, "the table of packages lists %s, which has no Go files: remove or rename the row", name)
		}
	}
}

// packages maps each directory to its package comment. The package comment of a suite is in one of its test files.
func packages(t *testing.T) map[string]string {
	t.Helper()
	found, top := map[string]string{}, root(t)
	err := filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() && path != top && strings.HasPrefix(entry.Name(), ".") {
			return fs.SkipDir // another test is removing the directory, or it is not part of the project
		}
		if entry.IsDir() || filepath.Ext(path) != ".go" {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments|parser.PackageClauseOnly)
		if err != nil {
			return err
		}
		folder, err := filepath.Rel(top, filepath.Dir(path))
		found[folder] += file.Doc.Text()
		return err
	})
	require.NoError(t, err)
	return found
}
