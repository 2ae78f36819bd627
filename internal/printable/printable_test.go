package printable_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/internal/printable"
)

func TestLine_escapesControlCharacters(t *testing.T) {
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

func TestURLPasswords_areHidden(t *testing.T) {
	for text, shown := range map[string]string{
		"http://user:hunter2@etcd:2379":               "http://redacted@etcd:2379",
		"a=https://u:hunter2@b:1,c=https://hunter2@d": "a=https://redacted@b:1,c=https://redacted@d",
		"http://u:hunter2@x@etcd/path?q=a@b":          "http://redacted@etcd/path?q=a@b",
		"http://etcd:2379/a@b, mail a@b":              "http://etcd:2379/a@b, mail a@b",
	} {
		assert.Equal(t, shown, printable.Line(text))
		assert.Equal(t, shown, printable.Text(text))
		var out strings.Builder
		n, err := printable.Log(&out).Write([]byte(`{"m":"` + text + "\"}\n"))
		require.NoError(t, err)
		assert.Equal(t, len(text)+9, n)
		assert.Equal(t, `{"m":"`+shown+"\"}\n", out.String())
	}
}

func TestLog_escapesControlCharacters(t *testing.T) {
	const text = "C1 \u009b31m, turned \u202e, a tag \U000e0041, ok ü"
	line, err := json.Marshal(text)
	require.NoError(t, err)
	var out strings.Builder
	_, err = printable.Log(&out).Write(line)
	require.NoError(t, err)
	assert.False(t, strings.ContainsFunc(out.String(), func(r rune) bool { return !unicode.IsPrint(r) }), "%q", out.String())
	assert.Contains(t, out.String(), "ok ü")
	var read string
	require.NoError(t, json.Unmarshal([]byte(out.String()), &read))
	assert.Equal(t, text, read)
}

func TestJSON_escapesStrings(t *testing.T) {
	document := []byte(`{"a": ["\u001b[2J \"x\\", 1.50, null], "b\n": {"c": "http://u:p@h two\nlines"}}`)
	assert.Equal(t, `{"a": ["\\x1b[2J \"x\\", 1.50, null], "b": {"c": "http://redacted@h two lines"}}`, string(printable.JSON(document)))
	assert.Equal(t, `{"a": "\q"}`, string(printable.JSON([]byte(`{"a": "\q"}`))), "an invalid string must not change")
}

// JSON must allocate almost nothing for plain text, because every open status page requests the document four times
// a second.
func TestJSON_plainTextsAreNotDecoded(t *testing.T) {
	document := []byte(`{"text": [` + strings.Repeat(`"no answer from http://etcd-main-local:8080", `, 100) + `""]}`)
	assert.LessOrEqual(t, testing.AllocsPerRun(10, func() { printable.JSON(document) }), 2.0)
}

func FuzzJSON(f *testing.F) {
	for _, text := range []string{"", " a", "a ", "a  b", "a b", "\x1b", "\u202e", "\xff", `\"`, `\\"`, "http://u:p@h", "<&>", "\u00a0a", "\u2028"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		encoded, err := json.Marshal(map[string]any{"k": text, "next": []string{text, "x"}})
		require.NoError(t, err)
		var shown struct {
			K    string
			Next []string
		}
		require.NoError(t, json.Unmarshal(printable.JSON(encoded), &shown))
		if valid := strings.ToValidUTF8(text, "\ufffd"); valid == text { // otherwise, json.Marshal replaced bytes
			require.Equal(t, printable.Line(text), shown.K)
		}
		require.Equal(t, []string{shown.K, "x"}, shown.Next)
		require.Equal(t, printable.Line(shown.K), shown.K, "no character may be left to escape")
	})
}

func TestTextKeepsLines(t *testing.T) {
	assert.Equal(t, "a\n\tb \\r\\x1b[A", printable.Text("a\n\tb \r\x1b[A"))
}

func FuzzLine(f *testing.F) {
	f.Add("\x1b[2J\n\u202e")
	f.Fuzz(func(t *testing.T, text string) {
		line := printable.Line(text)
		assert.True(t, utf8.ValidString(line))
		assert.False(t, strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }), "%q", line)
		assert.Equal(t, line, printable.Line(line), "Line must be idempotent")
	})
}
