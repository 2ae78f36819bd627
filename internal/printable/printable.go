// Package printable makes text safe to display. Errors quote external text. Names in certificates, for example,
// could move the cursor of a terminal, change its title or hide a line, and URLs may contain passwords.
//
// The package is used for the log, HTTP responses, the status document and the termination message.
package printable

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Line returns text as a single line. White space is collapsed to single spaces, and unprintable characters are
// replaced with Go escapes such as \x1b. The user and password of a URL are replaced with "redacted".
func Line(text string) string {
	return escaped(credentials.ReplaceAllString(strings.Join(strings.Fields(text), " "), redacted), "")
}

// Text is like Line but keeps line breaks and tabs.
func Text(text string) string { return escaped(credentials.ReplaceAllString(text, redacted), "\n\t") }

// ForTerminal is like Text but keeps passwords. Use it for data that the user requested.
func ForTerminal(text []byte) []byte { return []byte(escaped(string(text), "\n\t")) }

// JSON applies Line to all strings in a JSON document.
func JSON(document []byte) []byte {
	shown := make([]byte, 0, len(document))
	for {
		start := bytes.IndexByte(document, '"')
		if start < 0 {
			return append(shown, document...)
		}
		end := start + 1
		for end < len(document) && document[end] != '"' {
			if document[end] == '\\' {
				end++
			}
			end++
		}
		end = min(end+1, len(document))
		shown = appendLiteral(append(shown, document[:start]...), document[start:end])
		document = document[end:]
	}
}

// appendLiteral appends a JSON string after applying Line to it. appendLiteral does not decode strings that need no
// change, because most strings need none.
func appendLiteral(shown, literal []byte) []byte {
	if isPlain(literal) {
		return append(shown, literal...)
	}
	var text string
	if json.Unmarshal(literal, &text) != nil { // every other decoder would also reject the string
		return append(shown, literal...)
	}
	encoded, _ := json.Marshal(Line(text)) // encoding a string never fails
	return append(shown, encoded...)
}

// isPlain reports whether a JSON string obviously needs no change: it contains only printable ASCII characters and
// single spaces, no escapes, and no @, which would follow the password in a URL.
func isPlain(literal []byte) bool {
	last := byte('"')
	for _, c := range literal {
		if c < ' ' || c > '~' || c == '\\' || c == '@' || last == ' ' && (c == ' ' || c == '"') || last == '"' && c == ' ' {
			return false
		}
		last = c
	}
	return true
}

func escaped(text, kept string) string {
	var b strings.Builder
	for len(text) > 0 {
		r, size := utf8.DecodeRuneInString(text)
		invalid := r == utf8.RuneError && size == 1
		if !invalid && (unicode.IsPrint(r) || strings.ContainsRune(kept, r)) {
			b.WriteString(text[:size])
		} else { // control characters, bidirectional marks, invalid bytes
			b.WriteString(strings.Trim(strconv.QuoteToASCII(text[:size]), `"`))
		}
		text = text[size:]
	}
	return b.String()
}

// credentials matches the user and password of a URL, with the characters that net/url allows except the comma, which
// separates URLs in etcd's lists.
var credentials = regexp.MustCompile(`://[-\w.:~!$&'()*+;=%@]*@`)

const redacted = "://redacted@"

// Log returns a writer for JSON log lines that hides passwords in URLs and escapes terminal control characters.
// Each call to Write results in a single write to the underlying writer.
func Log(to io.Writer) io.Writer { return &log{to} }

type log struct{ to io.Writer }

func (l *log) Write(line []byte) (int, error) {
	shown := line
	if bytes.Contains(line, []byte("://")) {
		shown = credentials.ReplaceAll(line, []byte(redacted))
	}
	if bytes.ContainsFunc(shown, needsEscape) {
		shown = escapedJSON(shown)
	}
	if _, err := l.to.Write(shown); err != nil {
		return 0, err
	}
	return len(line), nil
}

// needsEscape reports whether a character is allowed in JSON but not printable.
func needsEscape(r rune) bool { return r >= utf8.RuneSelf && !unicode.IsPrint(r) }

func escapedJSON(line []byte) []byte {
	var b bytes.Buffer
	for _, r := range string(line) {
		if !needsEscape(r) {
			b.WriteRune(r)
			continue
		}
		for _, unit := range utf16.Encode([]rune{r}) {
			fmt.Fprintf(&b, `\u%04x`, unit)
		}
	}
	return b.Bytes()
}
