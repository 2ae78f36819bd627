package lifecycle

import (
	"crypto/sha256"
	_ "embed" // for the picture
	"fmt"
	"strings"
)

//go:embed statemachine.svg
var picture string

// SVG is the picture that Graphviz made of DOT when the table was last changed. It is embedded, since there is no small
// library that lays a graph out as well; a test fails when it is not the current one. States have the id "state_NAME",
// arrows "edge_FROM_TO".
func SVG() string {
	_, svg, _ := strings.Cut(picture, "\n")
	return svg
}

// pictureOf is the first line of the embedded file, which says what it is a picture of.
func pictureOf(dot string) string {
	return fmt.Sprintf("<!-- made by \"make dot\" of %x -->", sha256.Sum256([]byte(dot)))
}
