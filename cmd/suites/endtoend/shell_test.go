package endtoend_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/harness"
)

// The test types commands into an interactive Bash, including the Tab key that requests a completion.
func TestBashCompletion(t *testing.T) {
	t.Parallel()
	named := filepath.Join(t.TempDir(), "etcd-wrapper")
	require.NoError(t, os.Symlink(harness.Built(t), named))
	for keys, command := range map[string]string{
		"etcd-wrapper backup ver\t--at=latest":                                     "etcd-wrapper backup verify --at=latest",
		"etcd-wrapper status --wat\t":                                              "etcd-wrapper status --watch",
		"etcd-wrapper version --output=js\t":                                       "etcd-wrapper version --output=json",
		"etcd-wrapper version -o js\t":                                             "etcd-wrapper version -o json",
		"etcd-wrapper restore --output text " + filepath.Dir(named) + "/etcd-wr\t": "etcd-wrapper restore --output text " + named,
	} {
		bash := exec.Command("bash", "--norc", "--noprofile", "-i")
		bash.Env = append(os.Environ(), "PATH="+filepath.Dir(named)+":"+os.Getenv("PATH"), "HISTFILE=", "INPUTRC=/dev/null")
		// "false &&" prevents the execution, and the history shows the completed command.
		bash.Stdin = strings.NewReader("source <(etcd-wrapper completion bash)\nfalse && " + keys + "\nhistory\n")
		out, err := bash.CombinedOutput()
		require.NoError(t, err, "%s", out)
		assert.Contains(t, string(out), command, "%q", keys)
	}
}

func TestManualPage_noWarnings(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("groff"); err != nil {
		t.Skip("skipped: groff is not installed")
	}
	page := harness.Output(t, "man")
	groff := exec.Command("groff", "-man", "-Tutf8", "-ww", "-P-cbou")
	groff.Stdin = strings.NewReader(page)
	var warnings strings.Builder
	groff.Stderr = &warnings
	shown, err := groff.Output()
	require.NoError(t, err)
	assert.Empty(t, warnings.String())
	assert.True(t, strings.Contains(string(shown), "       --backup-store=URL\n              URL "), "each flag is followed by its indented description")
}
