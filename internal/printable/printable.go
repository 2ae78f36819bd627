// Package printable makes text safe to show. Errors quote external text: names in a certificate, a reply, a file
// name. On a terminal such text can move the cursor, change the title or hide a line, and a URL may contain a
// password.
//
// The log, HTTP replies, the status document and the termination message use this package.
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

// Line returns text as one line. White space becomes one blank, and unprintable characters become Go escapes such as
// \x1b. The user and password of a URL are replaced with "redacted".
func Line(text string) string {
	return escaped(credentials.ReplaceAllString(strings.Join(strings.Fields(text), " "), redacted), "")
}

// Text is like Line for a text of several lines: it keeps line breaks and tabs.
func Text(text string) string { return escaped(credentials.ReplaceAllString(text, redacted), "\n\t") }

// ForTerminal returns data that a user requested. It is like Text, but keeps passwords.
func ForTerminal(text []byte) []byte { return []byte(escaped(string(text), "\n\t")) }

// JSON returns a JSON document in which every string is as Line returns it.
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

// appendLiteral appends a JSON string. Most strings need no change, so they are not decoded.
func appendLiteral(shown, literal []byte) []byte {
	if isPlain(literal) {
		return append(shown, literal...)
	}
	var text string
	if json.Unmarshal(literal, &text) != nil { // no reader could decode it either
		return append(shown, literal...)
	}
	encoded, _ := json.Marshal(Line(text)) // encoding a string never fails
	return append(shown, encoded...)
}

// isPlain reports whether Line certainly does not change a JSON string: printable ASCII with single blanks, without
// escapes and without an @, which ends a password in a URL.
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
		} else { // control characters, marks that change the direction of text, invalid bytes
			b.WriteString(strings.Trim(strconv.QuoteToASCII(text[:size]), `"`))
		}
		text = text[size:]
	}
	return b.String()
}

// credentials matches the user and password of a URL, in the characters that net/url allows there except the comma,
// which ends a URL in etcd's lists.
var credentials = regexp.MustCompile(`://[-\w.:~!$&'()*+;=%@]*@`)

const redacted = "://redacted@"

// Log returns a writer for lines of JSON that hides passwords in URLs and escapes characters that control a terminal.
// Each write results in a single write to to.
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

// needsEscape reports whether JSON allows a character that is not printable.
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
