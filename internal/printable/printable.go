// Package printable makes text safe to show. Errors quote text of others: names in a certificate, a reply, a file name. On a
// terminal such text can move the cursor, change the title or hide a line, and a URL may contain a password.
//
// Everything that shows such text uses this package: the log, HTTP replies, the status document, the termination message.
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

// Line returns text as one line: white space is one blank, everything else that is not printable is written as Go
// escapes it, such as \x1b. User and password of a URL are replaced by "redacted".
func Line(text string) string {
	return escaped(credentials.ReplaceAllString(strings.Join(strings.Fields(text), " "), redacted), "")
}

// Text is Line for a text of several lines, which it keeps, and its tabs.
func Text(text string) string { return escaped(credentials.ReplaceAllString(text, redacted), "\n\t") }

// ForTerminal returns data that a user asked for as Text does, but keeps passwords.
func ForTerminal(text []byte) []byte { return []byte(escaped(string(text), "\n\t")) }

// JSON returns a JSON document in which every text is as Line returns it.
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

// appendLiteral appends a text in JSON. Most texts need no change, so they are not decoded.
func appendLiteral(shown, literal []byte) []byte {
	if isPlain(literal) {
		return append(shown, literal...)
	}
	var text string
	if json.Unmarshal(literal, &text) != nil { // nothing can decode it
		return append(shown, literal...)
	}
	encoded, _ := json.Marshal(Line(text)) // a text always has an encoding
	return append(shown, encoded...)
}

// isPlain reports whether a text in JSON is certainly as Line returns it: printable ASCII with single blanks, without
// escapes and without the sign that ends a password in a URL.
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
		} else { // controls, marks that turn the direction of writing, bytes that are not a character
			b.WriteString(strings.Trim(strconv.QuoteToASCII(text[:size]), `"`))
		}
		text = text[size:]
	}
	return b.String()
}

// credentials matches user and password of a URL, in the characters that net/url allows
// there, but for the comma, which ends a URL in etcd's lists.
var credentials = regexp.MustCompile(`://[-\w.:~!$&'()*+;=%@]*@`)

const redacted = "://redacted@"

// Log returns a writer for lines of JSON that hides passwords in URLs, and escapes characters that control a terminal. It passes each write on as one write.
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
