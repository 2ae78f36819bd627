// Package page is the one page that a browser gets from the wrapper: the lifecycle's diagram with the current state lit,
// the timeline and the readiness checks, live. It needs nothing but the wrapper's own server, whose GET /lifecycle it
// watches, so it works through `kubectl port-forward` and without a network.
package page

import (
	"crypto/sha256"
	_ "embed" // for the page's parts
	"encoding/base64"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

var (
	//go:embed page.html
	frame string
	//go:embed page.css
	style string
	//go:embed page.js
	script string
)

// Handler serves the page with the diagram in it, an SVG whose states have the id "state_NAME" and whose arrows have the
// id "edge_FROM_TO".
func Handler(diagram string) http.Handler {
	body := strings.NewReplacer("{{style}}", style, "{{script}}", script, "{{diagram}}", diagram).Replace(frame)
	policy := policy()
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Content-Length", strconv.Itoa(len(body)))
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		_, _ = w.Write([]byte(body)) // a client that is gone misses nothing
	})
}

// policy lets the browser run this script, use this style and ask this server, and nothing else.
func policy() string {
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
