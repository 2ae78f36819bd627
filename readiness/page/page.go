// Package page is the one page that a browser gets from the wrapper: the lifecycle's states with the current one lit, the
// timeline, the last hours and the readiness checks, live. It needs nothing but the wrapper's own server, whose GET /lifecycle it
// watches, so it works through `kubectl port-forward` and without a network.
package page

import (
	"bytes"
	"crypto/sha256"
	_ "embed" // for the page's parts
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"etcd-wrapper/readiness/status"
)

var (
	//go:embed page.html
	frame string
	//go:embed page.css
	style string

	//go:embed words.js
	words string
	//go:embed facts.js
	facts string
	//go:embed tiles.js
	tiles string
	//go:embed trends.js
	trends string
	//go:embed happened.js
	happened string
	//go:embed ends.js
	ends string
	//go:embed back.js
	back string
	//go:embed diagram.js
	diagram string
	//go:embed watch.js
	watch string
)

// Handler serves the page with two things in it: the overview, an SVG whose states have the id "state_NAME" and whose
// arrows have the id "edge_FROM_TO", and the transition table as JSON, from which the page says what an arrow stands
// for. It is prepared here, once.
func Handler(overview, table string) http.Handler {
	script := words + facts + tiles + trends + happened + ends + back + diagram + watch
	var inert bytes.Buffer // no text of the table can end the element that it stands in
	json.HTMLEscape(&inert, []byte(table))
	recovery, _ := json.Marshal(status.RecoverySteps) // it is made of texts
	body := strings.NewReplacer("{{style}}", style, "{{script}}", script, "{{overview}}", overview, "{{table}}", inert.String(), "{{recovery}}", string(recovery)).Replace(frame)
	return newDocument("text/html; charset=utf-8", policy(script), body)
}

// Picture serves an SVG that the page links to as statemachine.svg: the machine with everything in it.
func Picture(svg string) http.Handler {
	return newDocument("image/svg+xml", "default-src 'none'; frame-ancestors 'none'", svg)
}

// policy lets the browser run this script, use this style and ask this server, and nothing else.
func policy(script string) string {
	return strings.Join([]string{
		"default-src 'none'",
		"script-src " + source(script),
		"style-src " + source(style),
		"connect-src 'self'",
		"img-src data:",
		"base-uri 'none'",
		"form-action 'none'",
		"frame-ancestors 'none'",
	}, "; ")
}

func source(inline string) string {
	sum := sha256.Sum256([]byte(inline))
	return fmt.Sprintf("'sha256-%s'", base64.StdEncoding.EncodeToString(sum[:]))
}
