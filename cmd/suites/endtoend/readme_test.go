package endtoend_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/docs"
	"etcd-wrapper/cmd/suites/harness"
	"etcd-wrapper/statemachine/statemachinetest"
)

// block returns the code block on a page that starts with the given text.
func block(t *testing.T, page, first string) docs.Block {
	t.Helper()
	for _, block := range docs.Blocks(t) {
		if block.Page == page && strings.HasPrefix(block.Text, first) {
			return block
		}
	}
	require.Fail(t, page+" has no code block that starts with "+first)
	return docs.Block{}
}

// typed returns a script that prints and runs each command in a block. replacements alternates between text in the
// commands, such as placeholders, and its replacement.
func typed(block docs.Block, replacements ...string) string {
	var script strings.Builder
	for _, command := range block.Commands() {
		fmt.Fprintf(&script, "printf '$ %%s\\n' '%s'\n%s\n", strings.ReplaceAll(command, "'", `'\''`), strings.NewReplacer(replacements...).Replace(command))
	}
	return script.String()
}

// helpers is the beginning of each script that runs commands from a page. It puts the program into PATH, and defines
// functions that wait until the program is ready, stop it where the page says Ctrl-C, and wait until a revision is
// stored where the page sleeps for a fixed time. GO does nothing, because the program has already been built.
const helpers = `
set -e
export GO=true PATH="$PWD/bin:$PATH"
etcdctl() { etcd-wrapper etcdctl "$@"; }
etcdutl() { etcd-wrapper etcdutl "$@"; }
started() { until etcd-wrapper status >status 2>&1; do kill -0 "$run"; sleep 0.1; done; }
stopped() { kill "$run"; wait "$run" || true; }
stored() { until etcd-wrapper backup get greeting --at=revision:"$1" >/dev/null 2>&1; do kill -0 "$run"; sleep 0.1; done; }
ip link set lo up
`

// inAnother returns a script that runs the given script in the background, as in a second terminal, and waits until
// etcd is ready.
func inAnother(script string) string {
	return "{\n" + script + "\n} >>log 2>&1 & run=$!\nstarted\n"
}

// follow runs a script in a new directory that contains the Makefile and the program, and returns the script's output
// and the directory. The script has its own network namespace, because the ports on the pages may be in use.
func follow(t *testing.T, script string) (printed, dir string) {
	t.Helper()
	for _, tool := range []string{"make", "ip", "zstd"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip("skipped: " + tool + " is not installed")
		}
	}
	dir = t.TempDir()
	makefile, err := os.ReadFile(filepath.Join("..", "..", "..", "Makefile"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "Makefile"), makefile, 0o600))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "bin"), 0o700))
	require.NoError(t, os.Symlink(harness.Built(t), filepath.Join(dir, "bin", "etcd-wrapper")))

	command := exec.Command("sh", "-c", helpers+script)
	command.Dir = dir
	command.Env = append(os.Environ(), "HOME="+dir)
	command.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	var out strings.Builder
	command.Stdout, command.Stderr = &out, &out
	err = command.Run()
	if errors.Is(err, syscall.EPERM) {
		t.Skip("skipped: a network namespace requires root")
	}
	log, _ := os.ReadFile(filepath.Join(dir, "log")) // output of inAnother, printed if the script fails
	require.NoError(t, err, "%s\n%s", out.String(), log[max(0, len(log)-2000):])
	return out.String(), dir
}

// assertPrinted checks that the given strings were printed in order.
func assertPrinted(t *testing.T, printed string, want ...string) {
	t.Helper()
	rest := printed
	for _, text := range want {
		_, after, found := strings.Cut(rest, text)
		assert.True(t, found, "the output does not contain %q in the expected order:\n%s", text, printed)
		rest = after
	}
}

func TestReadmeCommands(t *testing.T) {
	t.Parallel()
	const readme = "README.md"
	printed, dir := follow(t, inAnother(typed(block(t, readme, "make run     #")))+
		"cat status\n"+
		typed(block(t, readme, "bin/etcd-wrapper status"), "sleep 2", "stored 3")+
		"stopped\nprintf '$ rm -r .run/new.etcd && make run\\n'\n"+
		inAnother(block(t, readme, "rm -r .run").Text)+
		"grep -o 'the volume is empty; the cluster is restored to revision [0-9]*' log\n"+
		typed(block(t, readme, "bin/etcd-wrapper etcdctl --endpoints=http://127.0.0.1:2379 get"))+
		typed(block(t, readme, "zstd -dc"), "NAME", "$(ls .run/backups/gen/000001/full | head -n 1)")+
		"stopped\n"+inAnother("make run")+"stopped\n")
	assertPrinted(t, printed, ": Serving, ready\n", "OK\n", "OK\n", "restore points", "greeting\nhello\n", "changed greeting at revision 3, previously at revision 2\n",
		"out.db contains revision 2", "greeting\ngoodbye\n", "restored snapshot")
	assert.DirExists(t, filepath.Join(dir, "restored", "member"))
	log, err := os.ReadFile(filepath.Join(dir, "log"))
	require.NoError(t, err)
	assertPrinted(t, string(log), "the volume is empty; the cluster is restored to revision 3", "sanity validation")

	recorded := recording(printed)
	committed, err := os.ReadFile(recordingFile)
	require.NoError(t, err)
	if statemachinetest.IsUpdate() || masked(recorded) != masked(string(committed)) {
		statemachinetest.AssertGenerated(t, recordingFile, recorded)
	}
}

// recordingFile contains the terminal session from which the recording in the README is drawn.
const recordingFile = "../../../docs/pictures/recording.txt"

// recording returns the commands of a session that the README shows, with their output.
func recording(printed string) string {
	var shown strings.Builder
	for _, part := range strings.Split("\n"+printed, "\n$ ")[1:] {
		command, _, _ := strings.Cut(part, "\n")
		for _, some := range []string{"etcdctl", "backup get", "backup diff", "rm -r"} {
			if strings.Contains(command, some) {
				shown.WriteString("$ " + strings.TrimRight(part, "\n") + "\n")
				break
			}
		}
	}
	return shown.String()
}

// masked replaces all numbers in a text, because they differ between runs.
func masked(text string) string {
	return regexp.MustCompile(`\d+`).ReplaceAllString(text, "N")
}

// The commands on the pages must import the data of an existing etcd cluster and rehearse a restore.
func TestPageCommands_migrationAndPlanning(t *testing.T) {
	t.Parallel()
	const moving = "docs/moving.md"
	printed, dir := follow(t, inAnother("make run")+`
etcd-wrapper etcdctl put greeting hello
stored 2
`+typed(block(t, "docs/planning.md", "etcd-wrapper backup verify"), "time:-15m", "latest")+`
OLD=http://127.0.0.1:2379
etcd-wrapper etcdctl snapshot save plain.db
etcd-wrapper etcdutl snapshot restore plain.db --data-dir lib/etcd --name node-1 \
	--initial-cluster node-1=http://127.0.0.1:2380 --initial-advertise-peer-urls http://127.0.0.1:2380
`+snapshots(t, moving)+"stopped\n"+
		typed(block(t, moving, "mkdir"), "/var/lib", "lib")+
		"cat >etcd.yaml <<EOF\n"+strings.ReplaceAll(block(t, moving, "name: node-1").Text, "/var", "$PWD")+"EOF\nmkdir backups\n"+
		inAnother(typed(block(t, moving, "etcd-wrapper start-etcd"), "/var/lib", "$PWD/lib", "file:///backups", "file://$PWD/backups"))+
		"etcd-wrapper etcdctl get greeting\nstopped\n"+
		"mkdir bucket\n"+inAnother(last(t, moving))+
		"etcd-wrapper etcdctl get greeting -w fields\nstopped\n")
	assertPrinted(t, printed, "revision 2", "snap.db contains revision 2", "$ mv /var/lib", "greeting\nhello\n", `"Revision" : 100000`, `"Value" : "hello"`)
	assert.DirExists(t, filepath.Join(dir, "rehearsal", "member"))
	assert.FileExists(t, filepath.Join(dir, "backups", "cluster.json"), "the imported data is backed up")
}

// snapshots returns the commands with which a page takes a snapshot of an existing cluster and restores it. The last
// command of the block, which starts the member, is omitted (see last).
func snapshots(t *testing.T, page string) string {
	t.Helper()
	three := block(t, page, "etcdctl --endpoints=$OLD")
	three.Text = strings.Join(three.Commands()[:3], "\n")
	return typed(three, "/var/etcd/data", "moved")
}

func last(t *testing.T, page string) string {
	t.Helper()
	three := block(t, page, "etcdctl --endpoints=$OLD")
	three.Text = three.Commands()[3]
	return typed(three, "/var/etcd/data", "$PWD/moved", "s3://bucket/main", "file://$PWD/bucket")
}
