package docs

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// pages maps the paths of all pages to their contents.
func pages(t *testing.T) map[string]string {
	t.Helper()
	found, top := map[string]string{}, root(t)
	for _, pattern := range []string{"*.md", "docs/*.md"} {
		paths, err := filepath.Glob(filepath.Join(top, pattern))
		require.NoError(t, err)
		for _, file := range paths {
			content, err := os.ReadFile(file)
			require.NoError(t, err)
			name, err := filepath.Rel(top, file)
			require.NoError(t, err)
			found[name] = string(content)
		}
	}
	require.Contains(t, found, "README.md")
	return found
}

// link matches a Markdown link, with its text and its target.
var link = regexp.MustCompile(`\[([^\]]*)\]\(([^)\s]+)\)`)

// linksOf returns the files and anchors in this project that a page links to, with paths relative to the root.
func linksOf(name, content string) (files, anchors []string) {
	for _, match := range link.FindAllStringSubmatch(content, -1) {
		if strings.Contains(match[2], "://") {
			continue
		}
		file, anchor, _ := strings.Cut(match[2], "#")
		if file == "" {
			file = path.Base(name)
		}
		files, anchors = append(files, path.Join(path.Dir(name), file)), append(anchors, anchor)
	}
	return files, anchors
}

// anchorsOf returns the anchors that GitHub generates for a page's headings.
func anchorsOf(content string) (anchors []string) {
	fenced := false
	for line := range strings.Lines(content) {
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
		}
		if heading := strings.TrimLeft(line, "#"); !fenced && strings.HasPrefix(heading, " ") && heading != line {
			anchors = append(anchors, strings.Map(inAnchor, strings.TrimSpace(heading)))
		}
	}
	return anchors
}

func inAnchor(r rune) rune {
	switch {
	case r == ' ':
		return '-'
	case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
		return unicode.ToLower(r)
	default:
		return -1
	}
}

func TestLinks_resolve(t *testing.T) {
	all, top := pages(t), root(t)
	for name, content := range all {
		files, anchors := linksOf(name, content)
		for i, file := range files {
			if !assert.FileExists(t, filepath.Join(top, file), "%s links to a file that does not exist", name) || anchors[i] == "" {
				continue
			}
			assert.Contains(t, anchorsOf(all[file]), anchors[i], "%s has no heading for a link in %s", file, name)
		}
	}
}

func TestPages_areLinkedFromTheReadme(t *testing.T) {
	all, reached := pages(t), map[string]bool{"README.md": true, "CONTRIBUTING.md": true} // GitHub itself shows a link to CONTRIBUTING.md
	for next := []string{"README.md"}; len(next) > 0; next = next[1:] {
		files, _ := linksOf(next[0], all[next[0]])
		for _, file := range files {
			if _, ok := all[file]; ok && !reached[file] {
				reached[file] = true
				next = append(next, file)
			}
		}
	}
	for name := range all {
		assert.True(t, reached[name], "no chain of links leads from README.md to %s", name)
	}
}
