package page

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/klauspost/compress/gzhttp"

	"etcd-wrapper/readiness/status"
)

//go:embed *.js page.html page.css
var files embed.FS

// scripts lists the files that make up the page's script, in order.
var scripts = []string{"words.js", "facts.js", "tiles.js", "trends.js", "timeline.js", "recovery.js", "restore.js", "diagram.js", "watch.js"}

// comments matches the comment lines that are stripped from a script.
var comments = regexp.MustCompile(`(?m)^\s*//.*\n`)

// docs is the URL of the documentation, with a trailing slash. Release builds set it with a linker flag. If it is
// empty, the page does not link to the documentation.
var docs string

// Handler serves the page. overview is an SVG whose states have the ID "state_NAME" and whose arrows have the ID
// "edge_FROM_TO". table is the transition table in JSON. Handler assembles the page once.
func Handler(overview, table string) http.Handler {
	var script strings.Builder
	for _, name := range scripts {
		script.WriteString(comments.ReplaceAllString(file(name), ""))
	}
	style := file("page.css")
	var inert bytes.Buffer // escaped, so that no text in the table can close the enclosing element
	json.HTMLEscape(&inert, []byte(table))
	recovery, _ := json.Marshal(status.RecoverySteps) // cannot fail, because all fields are strings
	body := strings.NewReplacer("{{style}}", style, "{{script}}", script.String(), "{{overview}}", overview, "{{table}}", inert.String(),
		"{{recovery}}", string(recovery), "{{docs}}", html.EscapeString(docs)).Replace(file("page.html"))
	return document("text/html; charset=utf-8", policy(script.String(), style), body)
}

// file returns the content of an embedded file.
func file(name string) string {
	text, err := files.ReadFile(name)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// Diagram serves the SVG of the state machine, to which the page links as statemachine.svg.
func Diagram(svg string) http.Handler {
	return document("image/svg+xml", "default-src 'none'; frame-ancestors 'none'", svg)
}

// policy returns a content security policy that allows only this script, this style and connections to the same
// server.
func policy(script, style string) string {
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

// A document serves text that never changes. Browsers may cache it, but must revalidate it before each use.
func document(contentType, policy, text string) http.Handler {
	header := map[string]string{
		"Content-Security-Policy": policy,
		"X-Content-Type-Options":  "nosniff",
		"Referrer-Policy":         "no-referrer",
		"Cache-Control":           "no-cache",
		"Content-Type":            contentType,
		"ETag":                    fmt.Sprintf(`W/"%.8x"`, sha256.Sum256([]byte(policy+text))), // weak, because it applies to the compressed and the uncompressed text
	}
	return gzhttp.GzipHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, value := range header {
			w.Header().Set(name, value)
		}
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(text))
	}))
}
