// Package printable makes texts fit to be shown to people. Errors quote what strangers wrote: the names in a
// certificate, a reply, a file name. On a terminal such a text can move the cursor, change the title or hide a line.
package printable

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Line returns text as one line: white space is one blank, everything else that is not printable is written as Go
// escapes it, such as \x1b.
func Line(text string) string { return escaped(strings.Join(strings.Fields(text), " "), "") }

// Text is Line for a text of several lines, which it keeps, and its tabs.
func Text(text string) string { return escaped(text, "\n\t") }

func escaped(text, kept string) string {
	var b strings.Builder
	for len(text) > 0 {
		r, size := utf8.DecodeRuneInString(text)
		invalid := r == utf8.RuneError && size == 1
		if !invalid && (unicode.IsPrint(r) || strings.ContainsRune(kept, r)) {
			b.WriteString(text[:size])
		} else { // controls, marks that turn the direction of writing, bytes that are no character
			b.WriteString(strings.Trim(strconv.QuoteToASCII(text[:size]), `"`))
		}
		text = text[size:]
	}
	return b.String()
}
