package recovery

import (
	"crypto/sha256"
	_ "embed" // for the picture
	"fmt"
	"strings"
)

//go:embed recovery.svg
var picture string

// SVG is the picture that Graphviz made of DOT when the table was last changed. It is embedded; a test fails when it is not
// the current one.
func SVG() string {
	_, svg, _ := strings.Cut(picture, "\n")
	return svg
}

// pictureOf is the first line of the embedded file, which says what it is a picture of.
func pictureOf(dot string) string {
	return fmt.Sprintf("<!-- made by \"make dot\" of %x -->", sha256.Sum256([]byte(dot)))
}
