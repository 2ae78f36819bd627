package main

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/commandline"
)

// commandsOf returns the words of each command that the help lists.
func commandsOf(t *testing.T) (all [][]string) {
	parser, err := commandline.New(&commandLine{}, io.Discard)
	require.NoError(t, err)
	for _, leaf := range parser.Model.Leaves(true) {
		var words []string
		for node := leaf; node.Parent != nil; node = node.Parent {
			words = append([]string{node.Name}, words...)
		}
		all = append(all, words)
	}
	return all
}

func TestManual_everyCommandHasTwoExamplesThatParse(t *testing.T) {
	commands := commandsOf(t)
	for _, words := range commands {
		name := strings.Join(words, " ")
		examples := 0
		for line := range strings.Lines((&commandLine{}).Manual(name)) {
			line, isExample := strings.CutPrefix(line, "  ")
			_, line, ours := strings.Cut(line, "etcd-wrapper ")
			if !isExample || !ours {
				continue
			}
			examples++
			line = strings.TrimSuffix(strings.TrimSpace(strings.Split(strings.Split(line, " | ")[0], " > ")[0]), ")")
			require.True(t, strings.HasPrefix(line, name), line)
			_, err := commandline.Parse(&commandLine{}, strings.Fields(line), io.Discard)
			assert.NoError(t, err, line)
		}
		assert.GreaterOrEqual(t, examples, 2, name)
	}
	assert.Len(t, manual().Templates(), len(commands)+len([]string{"store", "statuses", "the file"}), "manual.tmpl has an entry without a command")
}

func TestHelp_80Columns(t *testing.T) {
	for _, words := range append(commandsOf(t), nil, []string{"backup"}) {
		var out bytes.Buffer
		_, err := parse(append(words, "--help"), &out)
		if len(words) > 0 && strings.HasPrefix(words[0], "etcd") { // these tools have their own help
			continue
		}
		require.ErrorIs(t, err, commandline.Done(0))
		for line := range strings.Lines(out.String()) {
			assert.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), 80, "%v: %s", words, line)
		}
	}
}

func TestHelp_onlyFlagsThatACommandUses(t *testing.T) {
	parser, err := commandline.New(&commandLine{}, io.Discard)
	require.NoError(t, err)
	reading := []string{"backup-store", "backup-identities", "backup-trusted-keys", "etcd-wrapper-port", "output"}
	for name, more := range map[string][]string{
		"list": {"verbose"}, "get": {"accept", "at", "generation", "prefix", "script"}, "copy": {"to-store", "follow"},
		"verify": {"backup-signing-key", "to", "generation"}, "prune": {"backup-keep", "dry-run"},
	} {
		var flags []string
		for _, leaf := range parser.Model.Leaves(true) {
			if leaf.Name != name || leaf.Parent.Name != "backup" {
				continue
			}
			for _, flag := range leaf.Flags {
				flags = append(flags, flag.Name)
			}
		}
		assert.ElementsMatch(t, append(reading, more...), flags, name)
	}
}
