package machine

import (
	"crypto/sha256"
	"fmt"
	"strings"
)

// Picture is an embedded file with what Graphviz made of a machine's DOT. It is embedded, since there is no small library
// that lays a graph out as well; a test of the machine fails when it is not the current one.
type Picture string

// SVG is the picture. States have the id "state_NAME", arrows "edge_FROM_TO".
func (p Picture) SVG() string {
	_, svg, _ := strings.Cut(string(p), "\n")
	return svg
}

// PictureOf is the first line of such a file, which says what it is a picture of.
func PictureOf(dot string) string {
	return fmt.Sprintf("<!-- made by \"make dot\" of %x -->", sha256.Sum256([]byte(dot)))
}
