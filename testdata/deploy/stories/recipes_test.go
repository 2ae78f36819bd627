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

// pastTheServer is a kubectl whose exec goes past the API server: no kubelet listens that it could ask.
const pastTheServer = `#!/bin/bash
set -eu
[ "$1" != -n ] || set -- "--namespace=$2" "${@:3}"
[ "${2-}" = exec ] || exec "$KUBECTL" "$@"
uid=$("$KUBECTL" "$1" get pod "$3" -o "jsonpath={.metadata.uid}")
while [ "$1" != -- ]; do shift; done
exec "$RUNC" --root "$RUNC_STATE" exec "$uid-etcd" "${@:2}"
`

// shell runs commands in a folder, as a person does who administers the cluster.
func (w *world) shell(ctx context.Context, folder, commands string) *exec.Cmd {
	w.t.Helper()
	bin := w.t.TempDir()
	require.NoError(w.t, os.WriteFile(filepath.Join(bin, "kubectl"), []byte(pastTheServer), 0o700))
	command := exec.CommandContext(ctx, "bash", "-euvc", "PATH="+bin+":$PATH\n"+commands)
	command.Dir, command.WaitDelay = folder, time.Second // kubectl may hold its output open
	command.Env = append(w.Environment(), "KUBECTL="+cluster.Tool("kubectl"), "RUNC="+cluster.Tool("runc"), "RUNC_STATE="+w.node.State())
	return command
}

// given are values in the file in which the pages have them.
func given(values string) map[string]string { return map[string]string{"my-etcd.yaml": values} }

// recipes are the blocks of a page.
var recipes = regexp.MustCompile(`(?m)(?:^ {4}.*\n)+`)

// recipe runs the block of a page that has a text, word by word but for the namespace, in a folder with a checkout's chart and files.
func (w *world) recipe(page, with string, files map[string]string) (said string) {
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
	out, err := w.shell(ctx, folder, strings.ReplaceAll(found[0], "-n etcd", "-n "+w.namespace)).CombinedOutput()
	require.NoError(w.t, err, "%s", out)
	return string(out)
}
