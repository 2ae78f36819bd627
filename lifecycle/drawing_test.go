package lifecycle_test

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/docs"
	. "etcd-wrapper/lifecycle"
	"etcd-wrapper/statemachine"
	"etcd-wrapper/statemachine/statemachinetest"
)

func TestCommittedFiles_showTheTable(t *testing.T) {
	tested.AssertCommitted(t, Diagram, NewRules(Table, Elsewhere).Matrix(States), "../statemachine.dot", "../testdata/matrix.golden", "statemachine.svg")
}

func TestCommittedPageDiagram_showsTheTable(t *testing.T) {
	const path = "../docs/lifecycle.md"
	before, rest, found := strings.Cut(readPage(t, path), "```mermaid\n")
	require.True(t, found, "%s has a Mermaid diagram", path)
	_, after, found := strings.Cut(rest, "```\n")
	require.True(t, found, "the Mermaid diagram of %s ends", path)
	statemachinetest.AssertGenerated(t, path, before+"```mermaid\n"+Diagram.Mermaid()+"```\n"+after)
}

func TestDiagram_isDeterministic(t *testing.T) {
	for range 20 {
		require.Equal(t, Diagram.DOT(), Diagram.DOT())
	}
}

func TestTableJSON(t *testing.T) {
	var document struct {
		States      []statemachine.StateInfo
		Transitions []Row
		Elsewhere   []statemachine.Default
	}
	require.NoError(t, json.Unmarshal([]byte(Diagram.JSON()), &document))
	assert.Len(t, document.States, len(States))
	for i, state := range document.States {
		state.Bound = States[i].Bound // only for tests
		assert.Equal(t, States[i], state)
	}
	assert.Equal(t, Table, document.Transitions)
	assert.Equal(t, Elsewhere, document.Elsewhere)
}

func readPage(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(content)
}

func TestDocumentedStates_matchTheTable(t *testing.T) {
	rows := docs.Table(t, "state", "what happens", "bounded by")
	require.Len(t, rows, len(States), "the table of states of docs/*.md has a row for each state and no other")
	for i, state := range States {
		assert.Equal(t, string(state.Name), rows[i][0], "the states stand in the order of a run")
		assert.NotEmpty(t, rows[i][1], "say what happens in %s", state.Name)
		assert.Equal(t, state.Deadline, rows[i][2], "what bounds %s, in the table of states of docs/*.md", state.Name)
	}
	promise := fmt.Sprintf("Shutting down takes at most %g s before etcd is started, and at most %g s afterwards", AbortBudget.Seconds(), StopBudget.Seconds())
	assert.Contains(t, readPage(t, "../README.md"), promise, "what README.md promises of a stop")
}

// overviewDOT returns the Graphviz source of the overview. The labels reserve space for counts.
func overviewDOT() string {
	var b strings.Builder
	b.WriteString(`digraph overview {
  graph [nodesep=0.1, ranksep=0.1, margin=0.08];
  node [shape=box, fontname=Helvetica, fontsize=15, margin="0.1,0.05", height=0.5, width=0.8];
  edge [fontname=Helvetica, fontsize=11, arrowsize=0.7];
  begin [label="", shape=circle, width=0.14, height=0.14];
  begin -> Query;
`)
	for _, id := range edges() {
		from, to, _ := strings.Cut(id, "_")
		fmt.Fprintf(&b, "  %s -> %s [label=\"×9.9k\"];\n", from, to)
	}
	b.WriteString("}\n")
	return b.String()
}

// edges returns FROM_TO for each pair of states with a transition.
func edges() (ids []string) {
	for _, row := range Table {
		if id := string(row.From + "_" + row.To); row.Moves() && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// laidOut is the output of Graphviz.
type laidOut struct {
	ViewBox string `xml:"viewBox,attr"`
	Graph   struct {
		Transform string `xml:"transform,attr"`
		Parts     []struct {
			Class string `xml:"class,attr"`
			Title string `xml:"title"`
			Path  struct {
				D string `xml:"d,attr"`
			} `xml:"path"`
			Polygon struct {
				Points string `xml:"points,attr"`
			} `xml:"polygon"`
			Ellipse struct {
				X float64 `xml:"cx,attr"`
				Y float64 `xml:"cy,attr"`
			} `xml:"ellipse"`
			Text struct {
				X float64 `xml:"x,attr"`
				Y float64 `xml:"y,attr"`
			} `xml:"text"`
		} `xml:"g"`
	} `xml:"g"`
}

// overviewOf adds the ids, classes and badges of the overview to a layout and removes the colours. A wide invisible
// line under each arrow serves as a touch target.
func overviewOf(t *testing.T, svg string) string {
	var layout laidOut
	require.NoError(t, xml.Unmarshal([]byte(svg), &layout))
	var b strings.Builder
	fmt.Fprintf(&b, `<svg viewBox="%s" xmlns="http://www.w3.org/2000/svg">`+"\n"+`<g transform="%s">`+"\n", layout.ViewBox, layout.Graph.Transform)
	for _, part := range layout.Graph.Parts {
		arrow := fmt.Sprintf(`<path class="line" d="%s"/><path class="tip" d="M%sz"/>`, part.Path.D, part.Polygon.Points)
		from, to, _ := strings.Cut(part.Title, "->")
		switch {
		case part.Title == "begin":
			fmt.Fprintf(&b, `<g class="begin"><circle cx="%g" cy="%g" r="5"/></g>`+"\n", part.Ellipse.X, part.Ellipse.Y)
		case from == "begin":
			fmt.Fprintf(&b, `<g class="begin">%s</g>`+"\n", arrow)
		case part.Class == "edge":
			fmt.Fprintf(&b, `<g id="edge_%s_%s" class="edge"><path class="grip" d="%s"/>%s<g class="badge" transform="translate(%g %g)">`+
				`<rect x="-15" y="-8" width="30" height="16" rx="8"/><text y="4" text-anchor="middle"></text></g></g>`+"\n",
				from, to, part.Path.D, arrow, part.Text.X, part.Text.Y-4)
		default:
			outline := rectangle(t, part.Polygon.Points, 0)
			if part.Title == string(Terminated) {
				outline += rectangle(t, part.Polygon.Points, 4)
			}
			fmt.Fprintf(&b, `<g id="state_%s" class="node">%s<text x="%g" y="%g" text-anchor="middle">%s</text></g>`+"\n",
				part.Title, outline, part.Text.X, part.Text.Y, part.Title)
		}
	}
	b.WriteString("</g>\n</svg>\n")
	return b.String()
}

// rectangle converts a Graphviz polygon into a rectangle with round corners, inset by some units.
func rectangle(t *testing.T, points string, inset float64) string {
	var right, top, left, bottom float64
	_, err := fmt.Sscanf(points, "%g,%g %g,%g %g,%g", &right, &top, &left, &top, &left, &bottom)
	require.NoError(t, err)
	return fmt.Sprintf(`<rect x="%g" y="%g" width="%g" height="%g" rx="%g"/>`,
		left+inset, top+inset, right-left-2*inset, bottom-top-2*inset, 10-inset)
}

func TestCommittedOverview_showsTheTable(t *testing.T) {
	tested.AssertDiagram(t, "overview.svg", overviewDOT(), func(svg string) string { return overviewOf(t, svg) })
}

// drawing is the part of the overview that the tests check.
type drawing struct {
	Groups []struct {
		ID    string `xml:"id,attr"`
		Class string `xml:"class,attr"`
		Rect  []box  `xml:"rect"`
		Badge struct {
			Transform string `xml:"transform,attr"`
		} `xml:"g"`
	} `xml:"g>g"`
}

type box struct {
	X      float64 `xml:"x,attr"`
	Y      float64 `xml:"y,attr"`
	Width  float64 `xml:"width,attr"`
	Height float64 `xml:"height,attr"`
}

func (b box) meets(other box) bool {
	return b.X < other.X+other.Width && other.X < b.X+b.Width && b.Y < other.Y+other.Height && other.Y < b.Y+b.Height
}

func drawn(t *testing.T) drawing {
	var d drawing
	require.NoError(t, xml.Unmarshal([]byte(Overview()), &d))
	return d
}

func TestOverview_statesAndTransitions(t *testing.T) {
	var want, is []string
	for _, state := range States {
		want = append(want, "state_"+string(state.Name))
	}
	for _, id := range edges() {
		want = append(want, "edge_"+id)
	}
	for _, group := range drawn(t).Groups {
		if group.ID != "" {
			is = append(is, group.ID)
		}
	}
	assert.ElementsMatch(t, want, is, "the picture has an arrow for every way of the table")
}

func TestOverview_countsDoNotOverlap(t *testing.T) {
	var taken []box
	for _, group := range drawn(t).Groups {
		if group.Class == "node" {
			taken = append(taken, group.Rect[0])
		}
	}
	require.Len(t, taken, len(States))
	for _, group := range drawn(t).Groups {
		if group.Class != "edge" {
			continue
		}
		var x, y float64
		_, err := fmt.Sscanf(group.Badge.Transform, "translate(%g %g)", &x, &y)
		require.NoError(t, err)
		badge := box{x - 15, y - 8, 30, 16}
		for _, other := range taken {
			assert.False(t, badge.meets(other), "the count of %s at %+v covers %+v", group.ID, badge, other)
		}
		taken = append(taken, badge)
	}
}

func TestOverview_hasNoColours(t *testing.T) {
	for _, own := range []string{"fill=", "stroke=", "style=", "font-"} {
		assert.False(t, strings.Contains(Overview(), own), own)
	}
}
