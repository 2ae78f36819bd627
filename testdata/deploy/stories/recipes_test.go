package stories

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/testdata/deploy/cluster"
)

// shell prepares commands that run in a directory, with the environment of a cluster administrator.
func (w *environment) shell(ctx context.Context, folder, commands string) *exec.Cmd {
	w.t.Helper()
	command := exec.CommandContext(ctx, "bash", "-euvc", commands)
	command.Dir, command.WaitDelay = folder, time.Second // a child process of kubectl may keep the output open
	command.Env = w.Environment()
	return command
}

// valuesFile returns the chart values as a file with the name that is used on the documentation pages.
func valuesFile(values string) map[string]string { return map[string]string{"my-etcd.yaml": values} }

// recipes matches the code blocks on a page.
var recipes = regexp.MustCompile(`(?m)(?:^ {4}.*\n)+`)

// recipe runs the only code block on a documentation page that contains the text with. The block runs in a directory
// with the given files and the project's deploy directory. recipe first replaces the namespace in the block and, for
// each pair of strings in own, the first string with the second.
func (w *environment) recipe(page, with string, files map[string]string, own ...string) (output string) {
	w.t.Helper()
	content, err := os.ReadFile(checkout(page))
	require.NoError(w.t, err)
	var found []string
	for _, block := range recipes.FindAllString(string(content), -1) {
		if strings.Contains(block, with) {
			found = append(found, block)
		}
	}
	require.Len(w.t, found, 1, "%s: blocks with %s", page, with)
	folder := w.t.TempDir()
	require.NoError(w.t, os.Symlink(checkout("deploy"), filepath.Join(folder, "deploy")))
	for name, content := range files {
		require.NoError(w.t, os.WriteFile(filepath.Join(folder, name), []byte(content), 0o600))
	}
	ctx, cancel := context.WithTimeout(w.t.Context(), cluster.Patience)
	defer cancel()
	commands := strings.NewReplacer(append(own, "-n etcd", "-n "+w.namespace)...).Replace(found[0])
	out, err := w.shell(ctx, folder, commands).CombinedOutput()
	require.NoError(w.t, err, "%s", out)
	return string(out)
}
