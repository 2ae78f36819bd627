package printable_test

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"

	"etcd-wrapper/exitcode/printable"
)

func TestLineShowsWhatATerminalWouldObey(t *testing.T) {
	for text, shown := range map[string]string{
		"":                          "",
		"x509: not valid for \"a\"": "x509: not valid for \"a\"",
		"größer → 日本":               "größer → 日本",
		"two\nlines\tand  blanks ":  "two lines and blanks",
		"\x1b[2Jgone\x1b]0;t\a":     `\x1b[2Jgone\x1b]0;t\a`,
		"C1 \u009b31m":              `C1 \u009b31m`,
		"\u202eturned":              `\u202eturned`,
		"not \xff UTF-8 \xc3":       `not \xff UTF-8 \xc3`,
		"back\b\b\bslash \\":        `back\b\b\bslash \`,
		"\x00\x7f":                  `\x00\x7f`,
	} {
		assert.Equal(t, shown, printable.Line(text))
	}
}

func TestTextKeepsLines(t *testing.T) {
	assert.Equal(t, "a\n\tb \\r\\x1b[A", printable.Text("a\n\tb \r\x1b[A"))
}

func FuzzNothingUnprintableIsLeft(f *testing.F) {
	f.Add("\x1b[2J\n\u202e")
	f.Fuzz(func(t *testing.T, text string) {
		line := printable.Line(text)
		assert.True(t, utf8.ValidString(line))
		assert.False(t, strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }), "%q", line)
		assert.Equal(t, line, printable.Line(line), "it is done once")
	})
}
