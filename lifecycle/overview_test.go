package lifecycle_test

import (
	"encoding/xml"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	. "etcd-wrapper/lifecycle"
)

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
	assert.ElementsMatch(t, want, is, "give every way of the table its route in overview.go")
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
