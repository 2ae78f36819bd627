package statemachine

import "strings"

// Picture is an embedded file with what Graphviz made of a machine's DOT, behind a line that says of which. It is embedded,
// since there is no small library that lays a graph out as well; a test of the machine fails when it is not the current one.
type Picture string

// SVG is the picture. States have the id "state_NAME", arrows "edge_FROM_TO".
func (p Picture) SVG() string {
	_, svg, _ := strings.Cut(string(p), "\n")
	return svg
}
