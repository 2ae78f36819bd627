package endtoend_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/harness"
)

// commands are the lines of the code block of the README that begins with one.
func commands(t *testing.T, readme, first string) string {
	t.Helper()
	_, behind, found := strings.Cut(readme, "\n    "+first)
	require.True(t, found, "the README has the command %q", first)
	block, _, _ := strings.Cut(first+behind, "\n\n")
	return strings.ReplaceAll(block, "\n    ", "\n")
}

// follow runs what a reader types, in a network of its own: the README's ports may be taken. The program is built already, so GO does
// nothing.
const follow = `
set -e
export GO=true
started() { until bin/etcd-wrapper status >status 2>&1; do kill -0 "$run"; sleep 0.1; done; }
ip link set lo up
{ %s
} >log 2>&1 & run=$!
started
%s
kill "$run"; wait "$run" || true
{ %s
} >>log 2>&1 & run=$!
started
bin/etcd-wrapper etcdctl --endpoints=http://127.0.0.1:2379 get greeting
kill "$run"; wait "$run" || true
`

func TestTheReadmeIsFollowedWordByWord(t *testing.T) {
	t.Parallel()
	for _, tool := range []string{"make", "ip"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip("there is no " + tool)
		}
	}
	root, dir := filepath.Join("..", "..", ".."), t.TempDir()
	content, err := os.ReadFile(filepath.Join(root, "README.md"))
	require.NoError(t, err)
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "Makefile"), makefile, 0o600))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "bin"), 0o700))
	require.NoError(t, os.Symlink(harness.Built(t), filepath.Join(dir, "bin", "etcd-wrapper")))

	readme := string(content)
	typed := exec.Command("sh", "-c", fmt.Sprintf(follow, commands(t, readme, "make run "), commands(t, readme, "bin/etcd-wrapper status"), commands(t, readme, "rm -r .run")))
	typed.Dir = dir
	typed.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	var printed strings.Builder
	typed.Stdout, typed.Stderr = &printed, &printed
	err = typed.Run()
	if errors.Is(err, syscall.EPERM) {
		t.Skip("a network of its own needs root")
	}
	log, _ := os.ReadFile(filepath.Join(dir, "log")) // of the program, for people
	require.NoError(t, err, "%s\n%s", printed.String(), log)
	rest := printed.String()
	for _, said := range []string{
		": Serving, ready\n", "OK\nOK\n", "can go back to", "greeting\nhello\n", "changed greeting, revision 3, before 2\n",
		"out.db holds revision 2", "greeting\ngoodbye\n",
	} {
		_, behind, found := strings.Cut(rest, said)
		assert.True(t, found, "%q is printed:\n%s", said, printed.String())
		rest = behind
	}
	assert.DirExists(t, filepath.Join(dir, "restored", "member"))
}
