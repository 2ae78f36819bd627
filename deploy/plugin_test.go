package deploy

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/template"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/exitcode"
)

// If the test binary is named kubectl, it acts as a fake kubectl for the plugin: "get" prints the pods in the
// environment variable PODS with the given template, and any other command prints its arguments and exits with the
// status in the environment variable STATUS.
func init() {
	if filepath.Base(os.Args[0]) != "kubectl" {
		return
	}
	status, err := strconv.Atoi(os.Getenv("STATUS"))
	args := os.Args[1:]
	if slices.Contains(args, "get") {
		status, err = 0, listPods(args)
	} else {
		fmt.Println(strings.Join(args, " "))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		status = 1
	}
	os.Exit(status)
}

func listPods(args []string) error {
	if !slices.ContainsFunc(args, func(arg string) bool {
		return strings.HasPrefix(arg, "--selector=app.kubernetes.io/component=etcd-statefulset")
	}) {
		return errors.New("kubectl get must select only the pods of the etcd StatefulSet")
	}
	var list any
	if err := json.Unmarshal([]byte(os.Getenv("PODS")), &list); err != nil {
		return err
	}
	_, text, _ := strings.Cut(args[len(args)-1], "--output=go-template=")
	parsed, err := template.New("").Parse(text)
	if err != nil {
		return err
	}
	return parsed.Execute(os.Stdout, list)
}

// runPlugin runs the plugin with a fake kubectl that lists the given pods and exits with the given status for all
// commands except get.
func runPlugin(t *testing.T, pods []string, status int, args ...string) (out, log string, code exitcode.Code) {
	t.Helper()
	executable, err := os.Executable()
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, os.Symlink(executable, filepath.Join(dir, "kubectl")))
	command := exec.Command("./kubectl-etcd", args...)
	command.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "PODS={\"items\":["+strings.Join(pods, ",")+"]}", "STATUS="+strconv.Itoa(status))
	var errs strings.Builder
	command.Stderr = &errs
	text, err := command.Output()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	return strings.TrimSpace(string(text)), errs.String(), exitcode.Code(command.ProcessState.ExitCode())
}

func podOf(release, name, ready string) string {
	return fmt.Sprintf(`{"metadata":{"name":%q,"labels":{"app.kubernetes.io/part-of":%q}},"status":{"phase":"Running","conditions":[`+
		`{"type":"Initialized","status":"True"},{"type":"Ready","status":%q}]}}`, name, release, ready)
}

func TestPlugin_firstReadyPod(t *testing.T) {
	pods := []string{
		`{"metadata":{"name":"main-9","labels":{"app.kubernetes.io/part-of":"main"}},"status":{"phase":"Pending"}}`,
		podOf("main", "main-0", "False"), podOf("main", "main-1", "True"), podOf("main", "main-2", "True"),
	}
	const run = "exec main-1 --stdin --container=etcd -- /etcd-wrapper "
	for command, want := range map[string]string{
		"status":                       run + "status --cluster",
		"status -o json":               run + "status --cluster -o json",
		"--pod=main-2 status":          strings.Replace(run, "main-1", "main-2", 1) + "status",
		"members":                      run + "etcdctl member list --write-out=table",
		"-n etcd backup list":          "--namespace=etcd " + run + "backup list",
		"--context c backup verify -h": "--context=c " + run + "backup verify -h",
	} {
		out, log, code := runPlugin(t, pods, 0, strings.Fields(command)...)
		assert.Equal(t, want, out)
		assert.Equal(t, exitcode.Clean, code, log)
	}
}

func TestPlugin_exitStatus(t *testing.T) {
	out, log, code := runPlugin(t, []string{podOf("main", "main-0", "False")}, 3, "status")
	assert.Contains(t, out, "exec main-0 ", "if no pod is ready, the plugin must use a running pod")
	assert.Equal(t, exitcode.Code(3), code)
	assert.Empty(t, log, "the plugin must not add a message to that of the command")
}

func TestPlugin_errors(t *testing.T) {
	several := []string{podOf("a", "a-0", "True"), podOf("b", "b-0", "True")}
	for command, want := range map[string]string{
		"status":         "the namespace has several releases (a, b): select one with --release",
		"--pot=x status": "--pot: unknown flag",
		"-n":             "-n: missing value",
	} {
		_, log, code := runPlugin(t, several, 0, strings.Fields(command)...)
		assert.Contains(t, log, want)
		assert.Equal(t, exitcode.Usage, code)
	}
	_, log, code := runPlugin(t, nil, 0, "-r", "main", "status")
	assert.Contains(t, log, "no etcd pod found")
	assert.Equal(t, exitcode.Usage, code)
	for _, args := range [][]string{{"--help"}, nil} {
		out, _, code := runPlugin(t, nil, 0, args...)
		assert.Contains(t, out, "kubectl etcd [flags] COMMAND")
		assert.Equal(t, exitcode.Clean, code)
	}
}
