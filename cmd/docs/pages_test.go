package docs

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// maxWords returns the maximum number of words on a page. Reference pages, such as the backup format and the list of
// metrics, may be longer because they are not read from start to finish.
func maxWords(page string) int {
	switch page {
	case "README.md":
		return 1100
	case "docs/backup-format.md", "docs/api.md":
		return 3600
	default:
		return 2200
	}
}

// generated matches a generated diagram. Its words do not count, because its size depends on the transition table
// that it shows.
var generated = regexp.MustCompile("(?s)```mermaid\n.*?```\n")

func TestPages_length(t *testing.T) {
	for name, page := range pages(t) {
		words := len(strings.Fields(generated.ReplaceAllString(page, "")))
		assert.LessOrEqual(t, words, maxWords(name), "%s has too many words: shorten or split the page", name)
	}
}

// The README must link to each of these pages and sections, which answer the questions that most users have.
func TestReadme_linksToEveryAnswer(t *testing.T) {
	files, anchors := linksOf("README.md", pages(t)["README.md"])
	var links []string
	for i, file := range files {
		links = append(links, strings.TrimSuffix(file+"#"+anchors[i], "#"))
	}
	for _, answer := range []string{
		"docs/moving.md#from-plain-etcd-or-kubeadm", "docs/moving.md#from-etcd-druid", "docs/moving.md#from-another-chart",
		"docs/moving.md#a-different-bucket-or-cloud", "docs/moving.md#as-the-etcd-of-a-kubernetes-api-server",
		"docs/planning.md#sizing", "docs/planning.md#what-it-costs", "docs/planning.md#rpo-and-rto", "docs/planning.md#rehearsing-a-restore",
		"docs/tasks.md", "docs/standalone.md", "docs/glossary.md", "docs/upgrade.md#supported-versions", "docs/troubleshooting.md", "docs/runbook.md",
	} {
		assert.True(t, slices.Contains(links, answer), "README.md has no link to %s", answer)
	}
}
