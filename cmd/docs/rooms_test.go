package docs

import (
	"fmt"
	"go/build"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/statemachine/statemachinetest"
)

const module = "etcd-wrapper/"

// arrows contains the imports between rooms. It maps the importing room and the imported room to an example of such
// an import, for error messages.
type arrows map[string]map[string]string

func (a arrows) add(from, to, example string) {
	if a[from] == nil {
		a[from] = map[string]string{}
	}
	a[from][to] = example
}

// path returns the rooms on an import path from one room to another, or nil if there is no such path.
func (a arrows) path(from, to string) []string {
	seen := map[string]bool{}
	var walk func(string) []string
	walk = func(room string) []string {
		seen[room] = true
		for _, next := range slices.Sorted(maps.Keys(a[room])) {
			if next == to {
				return []string{room, to}
			}
			if !seen[next] {
				if way := walk(next); way != nil {
					return append([]string{room}, way...)
				}
			}
		}
		return nil
	}
	return walk(from)
}

// cycle describes an import cycle between rooms. It returns "" if there is none.
func (a arrows) cycle() string {
	for _, room := range slices.Sorted(maps.Keys(a)) {
		if way := a.path(room, room); way != nil {
			message := "import cycle from " + room + ":"
			for i := range len(way) - 1 {
				message += fmt.Sprintf(" %s;", a[way[i]][way[i+1]])
			}
			return strings.TrimSuffix(message, ";")
		}
	}
	return ""
}

// reduced returns the arrows without those that follow from others: if a imports b and b imports c, the arrow from a
// to c is omitted.
func (a arrows) reduced() arrows {
	kept := arrows{}
	for from, all := range a {
		for to, example := range all {
			over := func(between string) bool { return between != to && a.path(between, to) != nil }
			if !slices.ContainsFunc(slices.Collect(maps.Keys(all)), over) {
				kept.add(from, to, example)
			}
		}
	}
	return kept
}

// mermaid draws the arrows as a Mermaid diagram, in a fixed order.
func (a arrows) mermaid() string {
	var b strings.Builder
	b.WriteString("flowchart TB\n")
	node := func(room string) string {
		if id := strings.ReplaceAll(room, "/", "_"); id != room {
			return fmt.Sprintf("%s[%s]", id, room)
		}
		return room
	}
	for _, from := range slices.Sorted(maps.Keys(a)) {
		for _, to := range slices.Sorted(maps.Keys(a[from])) {
			fmt.Fprintf(&b, "    %s --> %s\n", node(from), node(to))
		}
	}
	return b.String()
}

// roomOf returns the room of a package, which is its top-level directory or a directory in backup.
func roomOf(folder string) string {
	parts := strings.Split(folder, "/")
	if parts[0] == "backup" && len(parts) > 1 {
		return "backup/" + parts[1]
	}
	return parts[0]
}

// imports returns the imports of all packages in the program.
func imports(t *testing.T) arrows {
	t.Helper()
	top, found, seen := root(t), arrows{}, map[string]bool{}
	var walk func(string)
	walk = func(folder string) {
		seen[folder] = true
		pkg, err := build.ImportDir(filepath.Join(top, folder), 0)
		require.NoError(t, err)
		for _, path := range pkg.Imports {
			imported, own := strings.CutPrefix(path, module)
			if !own {
				continue
			}
			if from, to := roomOf(folder), roomOf(imported); from != to {
				found.add(from, to, folder+" imports "+imported)
			}
			if !seen[imported] {
				walk(imported)
			}
		}
	}
	walk("cmd/etcd-wrapper")
	return found
}

func TestCommittedPackageDiagram_matchesImports(t *testing.T) {
	rooms := imports(t)
	require.Empty(t, rooms.cycle())
	for _, imported := range rooms {
		delete(imported, "internal") // not drawn, because every room may import it
	}
	content, err := os.ReadFile(filepath.Join(root(t), "docs", "design.md"))
	require.NoError(t, err)
	before, rest, found := strings.Cut(string(content), "```mermaid\nflowchart")
	require.True(t, found, "docs/design.md must contain the diagram of the rooms")
	_, after, found := strings.Cut(rest, "```\n")
	require.True(t, found, "the diagram of the rooms has no end")
	statemachinetest.AssertGenerated(t, "../../docs/design.md", before+"```mermaid\n"+rooms.reduced().mermaid()+"```\n"+after)
}

func TestImportCycles_areReported(t *testing.T) {
	rooms := arrows{}
	rooms.add("cmd", "member", "cmd/runtime imports member")
	rooms.add("member", "backup/store", "member/kubernetes imports backup/store/wire")
	assert.Empty(t, rooms.cycle())
	rooms.add("backup/store", "cmd", "backup/store/s3 imports cmd/logstream")
	assert.Equal(t, "import cycle from backup/store: backup/store/s3 imports cmd/logstream; "+
		"cmd/runtime imports member; member/kubernetes imports backup/store/wire", rooms.cycle())
}

func TestPackageDiagram_omitsImpliedArrows(t *testing.T) {
	rooms := arrows{}
	rooms.add("cmd", "member", "")
	rooms.add("member", "bootstrap", "")
	rooms.add("cmd", "bootstrap", "")
	assert.Equal(t, "flowchart TB\n    cmd --> member\n    member --> bootstrap\n", rooms.reduced().mermaid())
}
