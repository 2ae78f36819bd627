// Package docs reads README.md and docs/ for tests that compare the documentation with the program. A flag, metric,
// check or exit status that is not documented fails a test next to its code.
//
// Only tests import the package. Tests find tables by their headers, so a table can move to another page without a
// change to the test. The package's own tests check that everything the pages refer to exists: links, paths, make
// targets and packages.
package docs

import (
	"iter"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A Row contains the cells of a table row.
type Row []string

// Text returns the concatenated contents of README.md and docs/*.md.
func Text(t testing.TB) string {
	t.Helper()
	var text strings.Builder
	for _, page := range Pages(t) {
		text.WriteString(page)
	}
	return text.String()
}

// Pages yields the path and content of each page: first README.md, then docs/*.md.
func Pages(t testing.TB) iter.Seq2[string, string] {
	t.Helper()
	root := root(t)
	paths, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	require.NoError(t, err)
	return func(yield func(string, string) bool) {
		for _, path := range append([]string{filepath.Join(root, "README.md")}, paths...) {
			content, err := os.ReadFile(path)
			require.NoError(t, err)
			name, err := filepath.Rel(root, path)
			require.NoError(t, err)
			if !yield(name, string(content)) {
				return
			}
		}
	}
}

// root returns the directory that contains go.mod, because each test runs in the directory of its package.
func root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	require.NoError(t, err)
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		require.NotEqual(t, dir, filepath.Dir(dir), "no go.mod found above this test")
		dir = filepath.Dir(dir)
	}
}

// Table returns the rows of the table with the given header. The test fails unless there is exactly one such table.
func Table(t testing.TB, header ...string) (rows []Row) {
	t.Helper()
	inside, found := false, 0
	for line := range strings.Lines(Text(t)) {
		row, ok := cells(line)
		switch {
		case !ok:
			inside = false
		case slices.Equal(row, header):
			inside = true
			found++
		case inside && strings.Trim(row[0], "-:") != "":
			rows = append(rows, row)
		}
	}
	require.Equal(t, 1, found, "README.md and docs/*.md must have exactly one table with the header %q", header)
	return rows
}

// A Block is a code block on a page, which contains either commands or the content of a file.
type Block struct {
	Page, Text string
	Language   string // language of a fenced block; empty if the block is indented
}

// Blocks returns the code blocks of README.md and docs/*.md in order, with the indentation removed.
func Blocks(t testing.TB) (blocks []Block) {
	t.Helper()
	for name, page := range Pages(t) {
		var text strings.Builder
		fence, inside := "", false
		end := func() {
			if text.Len() > 0 {
				blocks = append(blocks, Block{name, text.String(), fence})
				text.Reset()
			}
			fence = ""
		}
		for line := range strings.Lines(page) {
			language, ok := strings.CutPrefix(strings.TrimSpace(line), "```")
			switch {
			case ok:
				end()
				if inside = !inside; inside {
					fence = language
				}
			case inside:
				text.WriteString(line)
			case strings.HasPrefix(line, "    ") && strings.TrimSpace(line) != "":
				text.WriteString(strings.TrimPrefix(line, "    "))
			default:
				end()
			}
		}
		end()
	}
	return blocks
}

// Commands returns the commands in a block with comments removed and continuation lines joined.
func (b Block) Commands() (commands []string) {
	for line := range strings.Lines(strings.ReplaceAll(b.Text, "\\\n", " ")) {
		line, _, _ = strings.Cut(strings.TrimSpace(line), " #")
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			commands = append(commands, line)
		}
	}
	return commands
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

// Quoted returns the backquoted words in a text.
func Quoted(text string) (names []string) {
	for _, match := range quoted.FindAllStringSubmatch(text, -1) {
		names = append(names, match[1])
	}
	return names
}

// Named returns the backquoted words in the first cell of each row.
func Named(rows []Row) (names []string) {
	for _, row := range rows {
		names = append(names, Quoted(row[0])...)
	}
	return names
}

// Find returns the row whose first cell contains name in backquotes, or nil.
func Find(rows []Row, name string) Row {
	for _, row := range rows {
		if slices.Contains(Quoted(row[0]), name) {
			return row
		}
	}
	return nil
}
