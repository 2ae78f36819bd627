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
	"etcd-wrapper/statemachine/statemachinetest"
)

func TestTheCommittedFilesAreTheTables(t *testing.T) {
	tested.AssertCommitted(t, Drawing, NewRules(Table, Elsewhere).Matrix(States), "../statemachine.dot", "../testdata/matrix.golden", "statemachine.svg")
}

func TestTheReadmesDiagramIsTheTables(t *testing.T) {
	before, rest, found := strings.Cut(readme(t), "```mermaid\n")
	require.True(t, found, "the README has a Mermaid diagram")
	_, after, found := strings.Cut(rest, "```\n")
	require.True(t, found, "the README's Mermaid diagram ends")
	statemachinetest.AssertGenerated(t, "../README.md", before+"```mermaid\n"+Drawing.Mermaid()+"```\n"+after)
}

func TestTheDiagramIsTheSameEveryTime(t *testing.T) {
	for range 20 {
		require.Equal(t, Drawing.DOT(), Drawing.DOT())
	}
}

func TestTheJSONHasTheStatesAndTheAnswersElsewhere(t *testing.T) {
	var document struct {
		States    []StateInfo
		Elsewhere []Default
	}
	require.NoError(t, json.Unmarshal([]byte(Drawing.JSON()), &document))
	assert.Len(t, document.States, len(States))
	for i, state := range document.States {
		state.Bound = States[i].Bound // the tests' own
		assert.Equal(t, States[i], state)
	}
	assert.Equal(t, Elsewhere, document.Elsewhere)
}

func readme(t *testing.T) string {
	t.Helper()
	content, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	return string(content)
}

// The documentation says the same about each state as the diagram does, numbers included.
func TestTheDocumentedStatesAreTheTables(t *testing.T) {
	rows := docs.Table(t, "state", "what happens", "bounded by")
	require.Len(t, rows, len(States), "the table of states of docs/*.md has a row for each state and no other")
	for i, state := range States {
		assert.Equal(t, string(state.Name), rows[i][0], "the states stand in the order of a run")
		assert.NotEmpty(t, rows[i][1], "say what happens in %s", state.Name)
		assert.Equal(t, state.Deadline, rows[i][2], "what bounds %s, in the table of states of docs/*.md", state.Name)
	}
	promise := fmt.Sprintf("A stop ends within %g s before etcd was started and within %g s afterwards", AbortBudget.Seconds(), StopBudget.Seconds())
	assert.Contains(t, readme(t), promise, "what README.md promises of a stop")
}

// drawing is what the tests read of the overview.
type drawing struct {
	Groups []struct {
		ID    string `xml:"id,attr"`
		Class string `xml:"class,attr"`
		Rect  []box  `xml:"rect"`
		Badge struct {
			Transform string `xml:"transform,attr"`
		} `xml:"g"`
	} `xml:"g"`
}

type box struct {
	X      int `xml:"x,attr"`
	Y      int `xml:"y,attr"`
	Width  int `xml:"width,attr"`
	Height int `xml:"height,attr"`
}

func (b box) meets(other box) bool {
	return b.X < other.X+other.Width && other.X < b.X+b.Width && b.Y < other.Y+other.Height && other.Y < b.Y+b.Height
}

func drawn(t *testing.T) drawing {
	var d drawing
	require.NoError(t, xml.Unmarshal([]byte(Overview()), &d))
	return d
}

func TestTheOverviewHasTheTablesStatesAndWaysAndNoOthers(t *testing.T) {
	var want, is []string
	for _, state := range States {
		want = append(want, "state_"+string(state.Name))
	}
	for _, row := range Table {
		if id := fmt.Sprintf("edge_%s_%s", row.From, row.To); row.From != row.To && !slices.Contains(want, id) {
			want = append(want, id)
		}
	}
	for _, group := range drawn(t).Groups {
		if group.ID != "" {
			is = append(is, group.ID)
		}
	}
	assert.ElementsMatch(t, want, is, "the picture has an arrow for every way of the table")
}

func TestNoCountOfTheOverviewCoversAStateOrAnotherCount(t *testing.T) {
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
		var x, y int
		_, err := fmt.Sscanf(group.Badge.Transform, "translate(%d %d)", &x, &y)
		require.NoError(t, err)
		badge := box{x - 15, y - 8, 30, 16}
		for _, other := range taken {
			assert.False(t, badge.meets(other), "the count of %s at %+v covers %+v", group.ID, badge, other)
		}
		taken = append(taken, badge)
	}
}

func TestTheOverviewLeavesColoursToThePage(t *testing.T) {
	for _, own := range []string{"fill=", "stroke=", "style=", "font-"} {
		assert.False(t, strings.Contains(Overview(), own), own)
	}
}
