package recovery

import (
	_ "embed" // for the picture

	"etcd-wrapper/statemachine"
)

//go:embed recovery.svg
var picture string

// SVG is the picture that Graphviz made of DOT when the table was last changed.
func SVG() string { return statemachine.Picture(picture).SVG() }
