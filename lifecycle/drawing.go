package lifecycle

import (
	_ "embed" // for the pictures
	"strings"

	"etcd-wrapper/statemachine"
)

// Drawing describes how the lifecycle is drawn.
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

//go:embed overview.svg
var overview string

// Overview returns the states and the ways between them as an SVG that fits a phone, without guards, actions and reasons.
// A state has the id "state_NAME", an arrow the id "edge_FROM_TO" and an empty text in an element of the class "badge", for
// the number of times that it was taken. The page that shows it chooses the colours. "make dot" lays it out with Graphviz.
func Overview() string {
	_, svg, _ := strings.Cut(overview, "\n")
	return svg
}
