package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

var (
	// external lists the commands that the pages may use besides etcd-wrapper, make and go test: tools, shell
	// builtins, and a few words of scripts.
	external = strings.Fields("age-keygen age az cat cp curl ctr docker etcdctl etcdutl export go helm kubectl mkdir mv npx openssl " +
		"podman rm sh sha256sum shasum skopeo sleep source ssh-keygen sudo tar zstd EOF brew cd until watch for done kill git etcdctl() . du echo systemctl")
	// yamlKey matches a key at the start of a line of YAML.
	yamlKey = regexp.MustCompile(`^(- )?"?[\w./-]+"?:( |$)`)
	// notShell lists the languages of fenced code blocks that do not contain shell commands. The language of command
	// output is "text".
	notShell = []string{"mermaid", "yaml", "text"}
	variable = regexp.MustCompile(`\b([A-Z_]{3,})=`)
	topics   = regexp.MustCompile(`-only=([a-z,]+)`)
	tested   = regexp.MustCompile(`^go test (\./\S+) (?:.*-run (\w+))?`)
)

// isQuotation reports whether a block contains something other than commands: an example of the backup format, Go
// code, or the output of a program.
func isQuotation(block Block) bool {
	return strings.HasPrefix(block.Page, "docs/backup-format") && !strings.Contains(block.Text, "etcdutl") ||
		strings.Contains(block.Text, "func Test") || strings.Contains(block.Text, " -> ")
}

// All commands on the pages must exist. Other tests run some of them: cmd/suites/endtoend runs the blocks that need
// neither a cluster nor a cloud, and testdata/deploy/stories runs the README's Kubernetes blocks.
func TestCommandsInPages_exist(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(root(t), "Makefile"))
	require.NoError(t, err)
	checked := 0
	for _, block := range Blocks(t) {
		if slices.Contains(notShell, block.Language) || isQuotation(block) || isYAML(t, block) {
			continue
		}
		for _, command := range block.Commands() {
			checked++
			first, rest, _ := strings.Cut(command, " ")
			switch {
			case first == "make":
				for _, name := range variable.FindAllStringSubmatch(rest, -1) {
					assert.Regexp(t, `\b`+name[1]+`\b`, string(makefile), "%s: %s", block.Page, command)
				}
			case tested.MatchString(command):
				found := tested.FindStringSubmatch(command)
				assert.DirExists(t, filepath.Join(root(t), found[1]), "%s: %s", block.Page, command)
			default:
				ours := strings.HasSuffix(first, "etcd-wrapper")
				assert.True(t, ours || slices.Contains(external, first) || yamlKey.MatchString(command), "%s: unknown command %q", block.Page, command)
			}
		}
	}
	assert.Greater(t, checked, 80)
}

// Each word that the pages pass to -only must select a benchmark.
func TestBenchmarksInPages_exist(t *testing.T) {
	sources, err := filepath.Glob(filepath.Join(root(t), "cmd", "suites", "bench", "*.go"))
	require.NoError(t, err)
	var bench strings.Builder
	for _, source := range sources {
		content, err := os.ReadFile(source)
		require.NoError(t, err)
		bench.Write(content)
	}
	lists := topics.FindAllStringSubmatch(Text(t), -1)
	require.NotEmpty(t, lists)
	for _, list := range lists {
		for topic := range strings.SplitSeq(list[1], ",") {
			assert.Regexp(t, `\{"([a-z ]+ )?`+topic+`( [a-z ]+)?",`, bench.String(), "make bench has no topic %s", topic)
		}
	}
}

// isYAML reports whether a block is the content of a YAML file. It fails the test if the YAML is invalid.
func isYAML(t *testing.T, block Block) bool {
	t.Helper()
	if !yamlKey.MatchString(block.Text) {
		return false
	}
	var content map[string]any
	assert.NoError(t, yaml.Unmarshal([]byte(block.Text), &content), "%s: %s", block.Page, block.Text)
	return true
}
