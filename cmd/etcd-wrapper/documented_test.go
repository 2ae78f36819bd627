package main

import (
	"io"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/commandline"
	"etcd-wrapper/cmd/docs"
	"etcd-wrapper/cmd/report"
	"etcd-wrapper/readiness"
	"etcd-wrapper/readiness/metrics"
)

func TestEveryEndpointIsDocumented(t *testing.T) {
	documented := docs.Named(docs.Table(t, "endpoint", "answer"))
	served := slices.Concat(readiness.Patterns(), slices.Collect(maps.Keys((&startCommand{}).routes(&report.Report{}, metrics.New(), nil))))
	for i, pattern := range served {
		served[i] = strings.TrimSuffix(pattern, "{$}")
		assert.Contains(t, documented, served[i], "put it into the table of endpoints of README.md or docs/*.md")
	}
	for _, name := range documented {
		assert.Contains(t, served, name, "the documentation's %s is no endpoint: take it out, or name it as it is", name)
	}
}

func TestEveryCommandAndItsFlagsAreDocumented(t *testing.T) {
	text := docs.Text(t)
	parser, err := commandline.New(&commandLine{}, io.Discard)
	require.NoError(t, err)
	for _, flag := range parser.Model.Flags[1:] { // the first is --help
		assert.Contains(t, text, "--"+flag.Name)
	}
	for _, command := range parser.Model.Leaves(true) {
		assert.Contains(t, text, command.FullPath())
		for _, flag := range command.Flags {
			named := strings.Contains(text, "`--"+flag.Name) || flag.Short != 0 && strings.Contains(text, "`-"+string(flag.Short)+" ")
			assert.True(t, named, "explain --%s of %s in README.md or docs/*.md", flag.Name, command.Name)
		}
	}
}

func TestEveryCommandOfTheCommandLineCanRun(t *testing.T) {
	parser, err := commandline.New(&commandLine{}, io.Discard)
	require.NoError(t, err)
	for _, leaf := range parser.Model.Leaves(false) {
		assert.Implements(t, (*command)(nil), leaf.Target.Addr().Interface(), leaf.Name)
	}
}
