package etcdconf_test

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/docs"
)

// twice is the warning of a key that is given twice, about a certain key and line.
var twice = regexp.MustCompile(`^\w+ is given twice, again on line \d+`)

func TestWarningsAreDocumentedWordByWord(t *testing.T) {
	for _, lines := range []string{
		"Pre-Vote: false", "name: a\nname: b", "1: a\n1: b", "name: a\n---\nname: b", "client-transport-security:",
		"client-transport-security: {cert-file: /nowhere, key-file: /nowhere}", "discovery-config:",
	} {
		warnings := parse(t, minimal+lines).Warnings
		require.NotEmpty(t, warnings, lines)
		for _, warning := range warnings {
			general := twice.ReplaceAllString(warning, "K is given twice, again on line N")
			assert.Contains(t, docs.Text(t), "| `"+general+"` |", "put it into the table of warnings of docs/*.md")
		}
	}
}

func TestRefusalsAreDocumentedWordByWord(t *testing.T) {
	for lines, as := range map[string]string{
		"ListenMetricsUrls: [{Scheme: http}]":                      "NAME: ",
		"Peer-Transport-Security: {}\npeer-transport-security: {}": "SECTION: ",
		"backend-batch-interval: 5s":                               "KEY: ",
	} {
		refusal := refuse(t, minimal+lines)
		assert.Contains(t, docs.Text(t), "| `"+as+refusal.Problem+"` |", "put it into the table of refusals of docs/*.md")
	}
}
