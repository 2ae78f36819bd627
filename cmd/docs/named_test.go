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
	// explained matches a Makefile target that `make help` lists.
	explained = regexp.MustCompile(`(?m)^([a-z-]+):.*## \S`)
	// command matches a make command in backquotes or at the start of a line of code.
	command = regexp.MustCompile("(?m)(?:`|^ {4,})make ([a-z-]+)")
	// place matches a path in one of the top-level directories.
	place = regexp.MustCompile(`^(cmd|lifecycle|statemachine|bootstrap|member|recovery|backup|internal|readiness|exitcode|testdata|docs|deploy)(/[\w.-]+)*$`)
)

func TestMakeTargetsInPages_exist(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(root(t), "Makefile"))
	require.NoError(t, err)
	listed, named := map[string]bool{}, map[string]bool{}
	for _, target := range explained.FindAllStringSubmatch(string(makefile), -1) {
		listed[target[1]] = true
	}
	for name, content := range pages(t) {
		for _, call := range command.FindAllStringSubmatch(content, -1) {
			named[call[1]] = true
			assert.True(t, listed[call[1]], "make help does not list make %s, which %s names", call[1], name)
		}
	}
	for target := range listed {
		assert.True(t, named[target], "README.md or docs/*.md should say what make %s is for", target)
	}
}

func TestPathsInPages_exist(t *testing.T) {
	checked := 0
	for name, content := range pages(t) {
		for _, quoted := range Quoted(content) {
			if place.MatchString(quoted) {
				checked++
				_, err := os.Stat(filepath.Join(root(t), quoted))
				assert.NoError(t, err, "%s names it", name)
			}
		}
	}
	assert.NotZero(t, checked)
}

// No two rows may describe the same thing, because one of them would become outdated.
func TestTables_haveNoDuplicateRows(t *testing.T) {
	for name, content := range pages(t) {
		seen := map[string]bool{}
		for line := range strings.Lines(content) {
			row, is := cells(line)
			switch {
			case !is:
				clear(seen)
			case strings.HasPrefix(row[0], "`"):
				assert.False(t, seen[row[0]], "a table of %s has two rows for %s: make them one", name, row[0])
				seen[row[0]] = true
			}
		}
	}
}

// logged matches a log call with a duration and captures the name of the field.
var logged = regexp.MustCompile(`\.Dur\("([^"]+)"`)

// The names of duration fields must end with a unit, as docs/log.md promises and the console requires.
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
		for _, duration := range logged.FindAllStringSubmatch(string(content), -1) {
			checked++
			assert.True(t, strings.HasSuffix(duration[1], "_ms"), "%s: call %s %s_ms", path, duration[1], duration[1])
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
		assert.NotEmpty(t, comment, "%s needs a package comment: what it owns, and who calls it", folder)
		assert.NotNil(t, Find(rows, folder), "put %s into the table of packages of docs/*.md", folder)
	}
	for _, name := range Named(rows) {
		if place.MatchString(name) {
			assert.Contains(t, packages, name, "the documentation's %s has no Go files: take it out, or name it as it is", name)
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
