package commandline

import (
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// tools is a command line with every kind of argument.
type tools struct {
	Debug bool `help:"Enable debug logging."`
	List  struct {
		Output string `enum:"text,json" default:"text" short:"o" help:"Output format."`
		All    bool   `short:"a" help:"List all entries."`
		Secret string `hidden:""`
		Level  string `arg:"" enum:"low,high" help:"Minimum level."`
		Path   string `arg:"" optional:"" help:"Path to list."`
	} `cmd:"" help:"List 'all'.\n.Starts with a dot."`
	Store struct {
		URL string `name:"url" placeholder:"URL" help:"URL with a backslash: a\\b."`
		Get struct {
			Key string `arg:""`
		} `cmd:"" help:"Read a value."`
	} `cmd:"" help:"Access the store."`
	Tool struct {
		Args []string `arg:"" optional:""`
	} `cmd:"" passthrough:"" help:"Run another program."`
	Inner struct{} `cmd:"" hidden:"" help:"Hidden command."`
}

func TestComplete(t *testing.T) {
	parser, err := New(&tools{}, io.Discard)
	require.NoError(t, err)
	for _, c := range []struct{ words, candidates []string }{
		{[]string{""}, []string{"list", "store", "tool"}},
		{[]string{"st"}, []string{"store"}},
		{[]string{"nonsense"}, nil},
		{[]string{"--d"}, []string{"--debug"}},
		{[]string{"--debug", "l"}, []string{"list"}},
		{[]string{"store", ""}, []string{"get"}},
		{[]string{"store", "get", "--"}, []string{"--url", "--help"}},
		{[]string{"store", "get", ""}, nil},
		{[]string{"list", "-"}, []string{"--output", "--all", "--help"}},
		{[]string{"list", "--output="}, []string{"--output=text", "--output=json"}},
		{[]string{"list", "--output=j"}, []string{"--output=json"}},
		{[]string{"list", "--output", ""}, []string{"text", "json"}},
		{[]string{"list", "-o", "t"}, []string{"text"}},
		{[]string{"list", "-o", "text", ""}, []string{"low", "high"}},
		{[]string{"list", "-a", ""}, []string{"low", "high"}},
		{[]string{"list", "low", ""}, nil},
		{[]string{"list", "--nonsense=", ""}, []string{"low", "high"}},
		{[]string{"store", "--url", "list", ""}, []string{"get"}},
		{[]string{"tool", ""}, nil},
		{[]string{"tool", "--"}, nil},
	} {
		var words []string
		for _, candidate := range Complete(parser, c.words) {
			words = append(words, candidate.Word)
		}
		assert.Equal(t, c.candidates, words, "%q", c.words)
	}
	assert.Equal(t, []Candidate{{"store", "Access the store."}}, Complete(parser, []string{"sto"}))
}

func TestManPage(t *testing.T) {
	parser, err := New(&tools{}, io.Discard)
	require.NoError(t, err)
	page := ManPage(parser.Model, "v1.0.0")
	for _, part := range []string{
		".TH \"ETCD-WRAPPER\" 1 \"\" \"etcd-wrapper v1.0.0\"\n",
		"\n.SS list <level> [<path>] [flags]\nList \\(aqall\\(aq.\n\\&.Starts with a dot.\n",
		"\n.TP\n.B \\-o, \\-\\-output=\"text\"\nOutput format.\n",
		"\n.SS store get <key> [flags]\n",
		"\n.TP\n.B \\-\\-url=URL\nURL with a backslash: a\\eb.\n",
	} {
		assert.Contains(t, page, part)
	}
	assert.NotContains(t, page, "secret")
	assert.NotContains(t, page, "inner")
}
