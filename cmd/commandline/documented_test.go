package commandline

import (
	"cmp"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/docs"
)

// The home directory is a text of the documentation's own, so that defaults can be compared.
func TestEveryFlagOfStartEtcdIsDocumentedWithItsDefault(t *testing.T) {
	t.Setenv("HOME", "$HOME")
	rows := docs.Table(t, "flag", "default", "meaning")
	parser, err := New(&commands{}, io.Discard)
	require.NoError(t, err)
	var have []string
	for _, flag := range parser.Model.Children[0].Flags {
		have = append(have, "--"+flag.Name)
		row := docs.Find(rows, "--"+flag.Name)
		if !assert.NotNil(t, row, "put --%s into the table of flags of README.md or docs/*.md", flag.Name) {
			continue
		}
		expected := flag.Default
		if flag.IsBool() {
			expected = cmp.Or(expected, "false")
		}
		assert.Equal(t, expected, strings.Trim(row[1], "`"), "the documented default of --%s", flag.Name)
	}
	for _, name := range docs.Named(rows) {
		assert.True(t, slices.Contains(have, name), "the documentation's %s is no flag: take it out, or name it as it is", name)
	}
}
