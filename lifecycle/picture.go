package lifecycle

import (
	_ "embed" // for the picture

	"etcd-wrapper/statemachine"
)

//go:embed statemachine.svg
var picture string

// SVG is the picture that Graphviz made of DOT when the table was last changed.
func SVG() string { return statemachine.Picture(picture).SVG() }
