package format_test

import (
	"bytes"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/format"
	. "etcd-wrapper/backup/format/formattest"
)

// fence is a block of code.
var fence = regexp.MustCompile("(?s)```\n(.*?)```")

// page is one of the documentation.
func page(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("..", "..", "docs", name))
	require.NoError(t, err)
	return string(content)
}

// documented returns the statement, the body and the records of the documented example.
func documented(t *testing.T) (line, body, records []byte) {
	t.Helper()
	blocks := fence.FindAllStringSubmatch(page(t, "backup-format-example.md"), -1)
	require.Len(t, blocks, 3)
	return []byte(blocks[0][1]), undump(t, blocks[1][1]), undump(t, blocks[2][1])
}

// undump reads what hex.Dump wrote.
func undump(t *testing.T, dump string) (all []byte) {
	t.Helper()
	for line := range strings.Lines(dump) {
		middle, _, _ := strings.Cut(line[10:], "|")
		bytes, err := hex.DecodeString(strings.ReplaceAll(middle, " ", ""))
		require.NoError(t, err)
		all = append(all, bytes...)
	}
	return all
}

func TestDocumentedExample(t *testing.T) {
	line, body, records := documented(t)
	plain, err := new(format.Keys).Open(bytes.NewReader(body), false)
	require.NoError(t, err)
	defer plain.Close()
	opened, err := io.ReadAll(plain)
	require.NoError(t, err)
	assert.Equal(t, records, opened)

	read, err := readAll(bytes.NewReader(append(line, body...)), &format.Keys{})
	require.NoError(t, err)
	want := example(t, &format.Keys{}).Manifest
	want.Body = read[0].Body // another zstd may write other bytes
	assert.Equal(t, want, read[0].Manifest)
	assert.Equal(t, format.Position{Revision: 10}, read[0].Next())
	assert.Equal(t, []format.Row{Row(7, 0, "apple"), Row(7, 1, ""), tombstone(9, 0, "pear")}, read[0].rows)
}

// jsonName is the name of a field in a line of JSON.
var jsonName = regexp.MustCompile(`"(\w+)":`)

func TestManifest_fieldsAreDocumented(t *testing.T) {
	whole := page(t, "backup-format.md")
	section := whole[strings.Index(whole, "## Segments"):strings.Index(whole, "## The chain")]
	keys := example(t, &format.Keys{})
	statement, _, _ := strings.Cut(string(keys.Line), `,"sha256":"`+keys.Body.SHA256.String())
	for _, name := range jsonName.FindAllStringSubmatch(statement, -1) {
		switch name[1] {
		case "statement", "format", "kind", "revision", "part", "bytes": // part of the surrounding JSON, or explained by an example
		default:
			assert.Contains(t, section, "`"+name[1]+"`")
		}
	}
	assert.Contains(t, section, "`encrypted`")
}
