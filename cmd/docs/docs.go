// Package docs reads what README.md and docs/ say, for tests that compare it with what the program really has: a
// flag, a metric, a check or a status that nobody has described fails the test beside its code.
//
// Only tests import it. A table may move from one of the files to another without a change here. Its own tests hold what
// the pages name by themselves: links, paths, make targets and packages.
package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Row is a row of a table, cell by cell.
type Row []string

// Text returns README.md and docs/*.md, one after the other.
func Text(t testing.TB) string {
	t.Helper()
	root := root(t)
	paths, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	require.NoError(t, err)
	var text strings.Builder
	for _, path := range append([]string{filepath.Join(root, "README.md")}, paths...) {
		content, err := os.ReadFile(path)
		require.NoError(t, err)
		text.Write(content)
	}
	return text.String()
}

// root is the directory of go.mod. Tests run in their package's directory.
func root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	require.NoError(t, err)
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		require.NotEqual(t, dir, filepath.Dir(dir), "there is no go.mod above this test")
		dir = filepath.Dir(dir)
	}
}

// Table returns the rows of the one table whose header has these cells.
func Table(t testing.TB, header ...string) (rows []Row) {
	t.Helper()
	inside, found := false, 0
	for line := range strings.Lines(Text(t)) {
		row, is := cells(line)
		switch {
		case !is:
			inside = false
		case slices.Equal(row, header):
			inside = true
			found++
		case inside && strings.Trim(row[0], "-:") != "":
			rows = append(rows, row)
		}
	}
	require.Equal(t, 1, found, "README.md and docs/*.md have one table with the header %q", header)
	return rows
}

func cells(line string) (Row, bool) {
	line = strings.TrimSpace(line)
	if !strings.HasPrefix(line, "|") {
		return nil, false
	}
	var row Row
	for cell := range strings.SplitSeq(strings.Trim(line, "|"), "|") {
		row = append(row, strings.TrimSpace(cell))
	}
	return row, true
}

var quoted = regexp.MustCompile("`([^`]*)`")

// Quoted returns the words in backquotes in a text.
func Quoted(text string) (names []string) {
	for _, match := range quoted.FindAllStringSubmatch(text, -1) {
		names = append(names, match[1])
	}
	return names
}

// list is words in backquotes, one after the other.
var list = regexp.MustCompile("^`[^`]*`(?:(?:,|\\s+or|\\s+and)+\\s+`[^`]*`)*")

// Listed returns the words in backquotes behind an introduction, in any order. README.md and docs/*.md have it once, on one
// line.
func Listed[T ~string](t testing.TB, introduction string) (words []T) {
	t.Helper()
	parts := strings.Split(Text(t), introduction)
	require.Len(t, parts, 2, "README.md and docs/*.md say %q once", introduction)
	for _, word := range Quoted(list.FindString(parts[1])) {
		words = append(words, T(word))
	}
	return words
}

// Named returns the words in backquotes in the first cells of rows.
func Named(rows []Row) (names []string) {
	for _, row := range rows {
		names = append(names, Quoted(row[0])...)
	}
	return names
}

// Find returns the row whose first cell has name in backquotes, or nil.
func Find(rows []Row, name string) Row {
	for _, row := range rows {
		if slices.Contains(Quoted(row[0]), name) {
			return row
		}
	}
	return nil
}
