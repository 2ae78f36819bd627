package lifecycle

import (
	"cmp"
	_ "embed" // for the picture
	"fmt"
	"slices"
	"strings"

	"etcd-wrapper/statemachine"
)

// Drawing is how the lifecycle is drawn.
var Drawing = statemachine.Drawing{
	Name: "lifecycle", Source: "etcd-wrapper --dump-fsm", Table: Table, States: States, Initial: Query, Final: Terminated, Aside: Terminating,
	Shapes: map[State]string{
		Serving:    `fillcolor="#dff3e1", color="#2c6e35", `,
		Terminated: `peripheries=2, fillcolor="#f3f3f3", `,
	},
	Defaults: Elsewhere, Picture: picture,
}

//go:embed statemachine.svg
var picture string

// Overview is the machine at a glance, as an SVG that fits a phone: a box for each state with the id "state_NAME" and an
// arrow for each way with the id "edge_FROM_TO", without guards, actions and reasons. Every arrow has a place for the
// count of times it was taken, an empty text in an element of the class "badge". The page that shows it chooses the colours.
//
// Graphviz is not asked for it: what it makes of eight states is wider than a phone, and moves whenever the table changes.
func Overview() string {
	places := placed()
	height := places[Terminated].y + boxHeight/2 + margin
	var b strings.Builder
	fmt.Fprintf(&b, `<svg viewBox="0 0 %d %d" xmlns="http://www.w3.org/2000/svg">`+"\n", overviewWidth, height)
	begin := places[Query].up(boxHeight / 2)
	fmt.Fprintf(&b, `<g class="begin"><circle cx="%d" cy="%d" r="5"/>%s</g>`+"\n", begin.x, begin.y-20, arrowOf(begin.up(20), begin))
	all := routes(places)
	for _, state := range States {
		b.WriteString(boxOf(state.Name, places[state.Name]))
		for _, way := range all {
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
	overviewWidth       = 364
	leftX, rightX       = 78, 248 // the columns' centres
	leftHalf, rightHalf = 44, 58  // half of their boxes' widths
	betweenX            = (leftX + leftHalf + rightX - rightHalf) / 2
	firstY, rowHeight   = 50, 80
	boxHeight           = 42
	margin              = 7
	tipLength, tipWidth = 8, 5
	bend                = 7 // radius of an arrow's corners

	apart    = 10 // half of the distance between the two arrows of neighbours
	corner   = 36 // from the centre of a box, where an arrow leaves it that turns
	nearLane = 18 // from a box to the first lane beside it
	laneGap  = 12
	slotGap  = 8  // between arrows that come from the same side
	above    = 11 // from a line to the count above it
	toSide   = 22 // and to that beside it
)

// spot is a point of the overview; y grows downwards.
type spot struct{ x, y int }

func (s spot) up(by int) spot { return spot{s.x, s.y - by} }

// half is half of the width of the boxes in a column.
func (s spot) half() int {
	if s.x == leftX {
		return leftHalf
	}
	return rightHalf
}

// placed are the centres of the states' boxes: a run goes down on the right, and what it repeats until there is a result
// stands on the left, beside Query and below.
func placed() map[State]spot {
	places := map[State]spot{Query: {rightX, firstY}}
	for row, state := range slices.Backward(BeforeResult[1:]) {
		places[state] = spot{leftX, firstY + (len(BeforeResult)-2-row)*rowHeight}
	}
	row := len(BeforeResult) - 1
	for _, state := range States {
		if _, stands := places[state.Name]; !stands {
			places[state.Name] = spot{rightX, firstY + row*rowHeight}
			row++
		}
	}
	return places
}

// route is how the arrow from one state to another runs, and where its count is.
type route struct {
	from, to State
	badge    spot // its centre
	through  []spot
}

// routes lays every way of the table from one state to another out. No two share a line, so that each can be lit alone. An
// arrow goes straight to a neighbour, or around one corner into the other column; where a box is in its way it takes a lane of
// its own along the edge. The shortest come first, so that corners and lanes lie within each other.
func routes(places map[State]spot) []route {
	all := ways(places)
	corners, lanes, slots := map[spot]int{}, map[int]int{}, map[spot]int{} // those in use: of a box, of a column, where arrows enter a box
	for i := range all {
		way, from, to := &all[i], places[all[i].from], places[all[i].to]
		side, down := cmp.Compare(to.x, from.x), cmp.Compare(to.y, from.y)
		turn := func(box spot, out int) int { // where an arrow leaves the box, or enters it, below or above
			key := spot{box.x + out, box.y + down}
			corners[key]++
			return box.x + out*(corner-(corners[key]-1)*laneGap)
		}
		enter := spot{to.x - side*to.half(), to.y}
		switch {
		case down == 0:
			y := from.y + side*apart
			way.through = []spot{{from.x + side*from.half(), y}, {enter.x, y}}
			way.badge = spot{betweenX, y + side*above}
		case side == 0 && !blocked(places, from.x, from.y, to.y):
			way.through = []spot{{from.x, from.y + down*boxHeight/2}, {to.x, to.y - down*boxHeight/2}}
			way.badge = spot{from.x + toSide, (from.y + to.y) / 2}
		case side != 0 && !blocked(places, from.x, from.y, to.y+down):
			x, y := turn(from, side), to.y+slots[enter]*slotGap
			slots[enter]++
			way.through = []spot{{x, from.y + down*boxHeight/2}, {x, y}, {enter.x, y}}
			way.badge = spot{betweenX, y - above}
		case side != 0 && !blocked(places, to.x, from.y-down, to.y):
			x, y := turn(spot{to.x, to.y - 2*down}, -side), from.y+apart
			way.through = []spot{{from.x + side*from.half(), y}, {x, y}, {x, to.y - down*boxHeight/2}}
			way.badge = spot{betweenX, y + above}
		default:
			out := cmp.Compare(from.x, overviewWidth/2)
			if side == 0 {
				enter.x += out * to.half()
			}
			lane, y := from.x+out*(from.half()+nearLane+lanes[out]*laneGap), to.y+slots[enter]*slotGap
			slots[enter]++
			lanes[out]++
			way.through = []spot{{from.x + out*from.half(), from.y}, {lane, from.y}, {lane, y}, {enter.x, y}}
			way.badge = spot{lane - out*toSide, from.y + rowHeight/2 - 4}
		}
	}
	for i := range all {
		all[i].centre(slots[spot{all[i].end().x, places[all[i].to].y}])
	}
	return all
}

// ways are those of the table that lead from one state to another, the shortest first.
func ways(places map[State]spot) (all []route) {
	for _, row := range Table {
		same := func(r route) bool { return r.from == row.From && r.to == row.To }
		if row.From != row.To && !slices.ContainsFunc(all, same) {
			all = append(all, route{from: row.From, to: row.To})
		}
	}
	length := func(r route) int { return max(places[r.to].y-places[r.from].y, places[r.from].y-places[r.to].y+1) }
	slices.SortStableFunc(all, func(one, other route) int { return cmp.Compare(length(one), length(other)) })
	return all
}

// blocked reports whether a box stands in a column between two heights.
func blocked(places map[State]spot, x, y, other int) bool {
	for _, box := range places {
		if box.x == x && min(y, other) < box.y && box.y < max(y, other) {
			return true
		}
	}
	return false
}

func (r *route) end() spot { return r.through[len(r.through)-1] }

// centre moves where an arrow enters the side of a box, which so many do.
func (r *route) centre(many int) {
	if many < 2 {
		return
	}
	last, by := len(r.through)-1, (many-1)*slotGap/2
	r.through[last-1], r.through[last] = r.through[last-1].up(by), r.through[last].up(by)
	if last == 2 {
		r.badge = r.badge.up(by)
	}
}

func boxOf(state State, at spot) string {
	width := 2 * at.half()
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
