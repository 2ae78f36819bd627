package lifecycle

import (
	"cmp"
	_ "embed" // for the picture
	"fmt"
	"strings"

	"etcd-wrapper/statemachine"
)

// drawing is how the lifecycle is drawn.
var drawing = statemachine.Drawing{
	Name: "lifecycle", Source: "etcd-wrapper --dump-fsm", States: States, Initial: Query, Final: Terminated, Aside: Terminating,
	Shapes: map[State]string{
		Serving:    `fillcolor="#dff3e1", color="#2c6e35", `,
		Terminated: `peripheries=2, fillcolor="#f3f3f3", `,
	},
	Defaults: Elsewhere,
}

// DOT is the table as a Graphviz graph, the same byte for byte every time. What makes the machine stay in a state is
// written into the state; what has no row is in the matrix, not in the picture.
func DOT(table []Row) string { return drawing.DOT(table) }

// Mermaid is the table as a Mermaid state diagram, which GitHub draws in a README.
func Mermaid(table []Row) string { return drawing.Mermaid(table) }

// JSON is the table, its states and the answers where there is no row, for programs.
func JSON(table []Row) (string, error) { return drawing.JSON(table) }

// Overview is the machine at a glance, as an SVG that fits a phone: a box for each state with the id "state_NAME" and an
// arrow for each way with the id "edge_FROM_TO", without guards, actions and reasons. Every arrow has a place for the
// count of times it was taken, an empty text in an element of the class "badge". Colours are left to whoever shows it.
//
// It is laid out by hand, because no layout engine draws eight states as calmly; a test fails when the table has a way
// that has no route here.
func Overview() string {
	var b strings.Builder
	fmt.Fprintf(&b, `<svg viewBox="0 0 %d %d" xmlns="http://www.w3.org/2000/svg">`+"\n", overviewWidth, overviewHeight)
	begin := places[Query].up(boxHeight / 2)
	fmt.Fprintf(&b, `<g class="begin"><circle cx="%d" cy="%d" r="5"/>%s</g>`+"\n", begin.x, begin.y-20, arrowOf(begin.up(20), begin))
	for _, state := range States {
		b.WriteString(boxOf(state.Name))
		for _, way := range routes {
			if way.from == state.Name {
				b.WriteString(way.svg())
			}
		}
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// Lengths in the SVG's own units: one is about a pixel on a phone.
const (
	overviewWidth, overviewHeight = 364, 550
	boxHeight                     = 42
	tipLength, tipWidth           = 8, 5
	bend                          = 7 // radius of an arrow's corners
)

// spot is a point of the overview; y grows downwards.
type spot struct{ x, y int }

func (s spot) up(by int) spot { return spot{s.x, s.y - by} }

// places are the centres of the states' boxes.
var places = map[State]spot{
	Wait: {72, 50}, Query: {248, 50},
	Trigger:     {72, 138},
	FetchConfig: {248, 206},
	StartEtcd:   {248, 282},
	Serving:     {248, 358},
	Terminating: {248, 446},
	Terminated:  {248, 522},
}

// boxWidth gives the states that lie on the way to Serving and to the end room for their longer names.
func boxWidth(state State) int {
	if state == Trigger || state == Wait {
		return 88
	}
	return 116
}

// route is how the arrow from one state to another runs, and where its count stands.
type route struct {
	from, to State
	badge    spot // its centre
	through  []spot
}

// routes has every way of the table from one state to another. No two share a line, so that each can be lit alone.
var routes = []route{
	{Query, Trigger, spot{160, 127}, []spot{{212, 71}, {212, 138}, {116, 138}}},
	{Query, Wait, spot{153, 29}, []spot{{190, 40}, {116, 40}}},
	{Query, FetchConfig, spot{270, 127}, []spot{{248, 71}, {248, 185}}},
	{Query, Terminating, spot{323, 39}, []spot{{306, 50}, {354, 50}, {354, 458}, {306, 458}}},
	{Trigger, Wait, spot{94, 94}, []spot{{72, 117}, {72, 71}}},
	{Trigger, Terminating, spot{94, 200}, []spot{{72, 159}, {72, 440}, {190, 440}}},
	{Wait, Query, spot{153, 71}, []spot{{116, 60}, {190, 60}}},
	{Wait, Terminating, spot{38, 200}, []spot{{28, 50}, {16, 50}, {16, 452}, {190, 452}}},
	{FetchConfig, StartEtcd, spot{270, 243}, []spot{{248, 227}, {248, 261}}},
	{FetchConfig, Terminating, spot{323, 195}, []spot{{306, 206}, {342, 206}, {342, 446}, {306, 446}}},
	{StartEtcd, Serving, spot{270, 319}, []spot{{248, 303}, {248, 337}}},
	{StartEtcd, Terminating, spot{323, 271}, []spot{{306, 282}, {330, 282}, {330, 434}, {306, 434}}},
	{Serving, Terminating, spot{270, 402}, []spot{{248, 379}, {248, 425}}},
	{Terminating, Terminated, spot{270, 484}, []spot{{248, 467}, {248, 501}}},
}

func boxOf(state State) string {
	at, width := places[state], boxWidth(state)
	final := ""
	if state == Terminated {
		final = rectangle(at, width-8, boxHeight-8, 6)
	}
	return fmt.Sprintf(`<g id="state_%s" class="node">%s%s<text x="%d" y="%d" text-anchor="middle">%s</text></g>`+"\n",
		state, rectangle(at, width, boxHeight, 10), final, at.x, at.y+5, state)
}

// svg has a wide line under the arrow, for fingers.
func (r *route) svg() string {
	return fmt.Sprintf(`<g id="edge_%s_%s" class="edge"><path class="grip" d="%s"/>%s`+
		`<g class="badge" transform="translate(%d %d)">%s<text y="4" text-anchor="middle"></text></g></g>`+"\n",
		r.from, r.to, line(r.through), arrowOf(r.through...), r.badge.x, r.badge.y, rectangle(spot{}, 30, 16, 8))
}

func rectangle(centre spot, width, height, radius int) string {
	return fmt.Sprintf(`<rect x="%d" y="%d" width="%d" height="%d" rx="%d"/>`,
		centre.x-width/2, centre.y-height/2, width, height, radius)
}

// arrowOf is a line with its tip.
func arrowOf(through ...spot) string {
	end := len(through) - 1
	tip := through[end]
	base := tip.towards(through[end-1], tipLength)
	dx, dy := (base.y-tip.y)*tipWidth/tipLength, (tip.x-base.x)*tipWidth/tipLength
	shaft := append(append([]spot{}, through[:end]...), base)
	return fmt.Sprintf(`<path class="line" d="%s"/><path class="tip" d="M%d %dL%d %dL%d %dz"/>`,
		line(shaft), tip.x, tip.y, base.x+dx, base.y+dy, base.x-dx, base.y-dy)
}

// line is the path through spots, with round corners.
func line(through []spot) string {
	path := fmt.Sprintf("M%d %d", through[0].x, through[0].y)
	for i := 1; i < len(through)-1; i++ {
		before, after := through[i].towards(through[i-1], bend), through[i].towards(through[i+1], bend)
		path += fmt.Sprintf("L%d %dQ%d %d %d %d", before.x, before.y, through[i].x, through[i].y, after.x, after.y)
	}
	last := through[len(through)-1]
	return path + fmt.Sprintf("L%d %d", last.x, last.y)
}

// towards moves a spot along a horizontal or vertical line.
func (s spot) towards(other spot, by int) spot {
	return spot{s.x + by*cmp.Compare(other.x, s.x), s.y + by*cmp.Compare(other.y, s.y)}
}

//go:embed statemachine.svg
var picture string

// SVG is the picture that Graphviz made of DOT when the table was last changed.
func SVG() string { return statemachine.Picture(picture).SVG() }
