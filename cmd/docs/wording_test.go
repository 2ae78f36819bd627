package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// unwritten lists the pages and Go directories that still contain constructions from the list below. Remove rewritten
// entries, and do not add new ones.
var unwritten = []string{"backup/writer", "cmd/etcd-wrapper"}

// pagesAndRooms returns all pages and all directories under top that contain Go files.
func pagesAndRooms(t *testing.T, top string) (found []string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
		name := entry.Name()
		if err == nil && entry.IsDir() && path != top && (strings.HasPrefix(name, ".") || name == "bin") {
			return fs.SkipDir
		}
		rel, _ := filepath.Rel(top, path)
		if filepath.Ext(name) == ".go" {
			rel = filepath.Dir(rel)
		} else if filepath.Ext(name) != ".md" {
			return err
		}
		if !slices.Contains(found, rel) {
			found = append(found, rel)
		}
		return err
	}))
	return found
}

// constructions lists patterns that must not occur in comments, messages or pages, each with a suggested replacement.
var constructions = []struct{ pattern, replacement string }{
	{`\b(tells?|told|says?|said) (whether|of|that|how|why)\b`, "report, log, show, print"},
	{`^(//\s*)?\w+ (is|are) (what|how|where|who|whose|whether|whom)\b`, "start with the name and a verb"},
	{`^(//\s*)?\w+ (is|implements) \w+(\.\w+)?'s\.?$`, "X implements store.Store"},
	{`\b(goes|gone|went|going|go) on\b`, "continue, resume"},
	{`\b(began|begun|begins? (to|anew|again))\b`, "start, started"},
	{`\b(gone|goes|went|going|brings?|brought) back\b`, "restore, restored to, return"},
	{`\bset aside\b`, "preserve, move"},
	{`\bnobody\b|\bsomebody\b`, "no member, another process, users, or the passive"},
	{`\bwhoever\b`, "name it"},
	{`\bof use\b`, "useful, usable"},
	{`\bbeside\b`, "next to, with"},
	{`\b(the|a|each|every|newest|last) full(s|\b[^ ]| (is|was|and|of|that|behind)\b)`, "full snapshot"},
	{`\b(thus|lest|anew|astray|heed|deem)\b`, "plain words"},
	{`\b(is|are|was|were) (waited for|looked at|asked for|gone on|told)\b`, "active voice"},
}

// allowed lists technical terms and quotations that match a pattern but are acceptable.
var allowed = []string{"in full", "`EtcdRestartedWithFull`", "A FullSnapshot", "a full and a delta snapshot"}

var patterns = sync.OnceValue(func() (all []*regexp.Regexp) {
	for _, construction := range constructions {
		all = append(all, regexp.MustCompile(`(?im)`+construction.pattern))
	}
	return all
})

// findConstructions returns the constructions that a text contains, with their replacements.
func findConstructions(text string) (found []string) {
	text = strings.ReplaceAll(text, "full\nsnapshot", "full snapshot")
	for _, word := range allowed {
		text = strings.ReplaceAll(text, word, "")
	}
	for i, pattern := range patterns() {
		for _, match := range pattern.FindAllString(text, -1) {
			found = append(found, "\""+match+"\" ("+constructions[i].replacement+")")
		}
	}
	return found
}

// proseOf returns the prose of a file: for a page, everything but its code blocks; for a Go file, its comments and
// messages; for a test file, only its comments.
func proseOf(t *testing.T, path string) (texts []string) {
	t.Helper()
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	if filepath.Ext(path) == ".md" {
		fenced := false
		for line := range strings.Lines(string(content)) {
			if strings.HasPrefix(line, "```") {
				fenced = !fenced
			} else if !fenced && !strings.HasPrefix(line, "    ") {
				texts = append(texts, quoted.ReplaceAllString(link.ReplaceAllString(strings.TrimSpace(line), "$1"), ""))
			}
		}
		return texts
	}
	file, err := parser.ParseFile(token.NewFileSet(), path, content, parser.ParseComments)
	require.NoError(t, err)
	for _, group := range file.Comments {
		texts = append(texts, group.Text())
	}
	ast.Inspect(file, func(node ast.Node) bool {
		literal, ok := node.(*ast.BasicLit)
		if ok && literal.Kind == token.STRING && strings.Count(literal.Value, " ") >= 3 && !strings.HasSuffix(path, "_test.go") {
			texts = append(texts, literal.Value)
		}
		return true
	})
	return texts
}

func TestWording_plainEnglish(t *testing.T) {
	top := root(t)
	for _, place := range pagesAndRooms(t, top) {
		if slices.Contains(unwritten, place) {
			continue
		}
		files := []string{place}
		if filepath.Ext(place) != ".md" {
			var err error
			files, err = filepath.Glob(filepath.Join(top, place, "*.go"))
			require.NoError(t, err)
			require.NotEmpty(t, files, "%s contains no Go files", place)
		}
		for _, file := range files {
			if !filepath.IsAbs(file) {
				file = filepath.Join(top, file)
			}
			for _, text := range proseOf(t, file) {
				for _, found := range findConstructions(text) {
					assert.Fail(t, "rewrite the text as described in docs/contributing.md", "%s: %s in: %s", place, found, strings.TrimSpace(text))
				}
			}
		}
	}
}

func TestWording_patterns(t *testing.T) {
	for _, text := range []string{
		"isWriter tells whether this member writes", "begun is what etcd is of", "Get is store.Store's.", "the writer goes on with the chain",
		"nobody answers", "data are set aside", "a full is made", "it was told", "the spool beside the data",
	} {
		assert.NotEmpty(t, findConstructions(text), text)
	}
	for _, text := range []string{
		"isWriter reports whether this member may start a chain.", "Get implements store.Store.", "A full snapshot is restored in full.",
		"upload of segment 305 failed: bucket not found; retrying in 26 s", "The process starts with a new chain.",
	} {
		assert.Empty(t, findConstructions(text), text)
	}
}
