package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/exitcode"
)

// withKubectl puts a kubectl on the path that lists these pods. For other calls it prints its arguments and exits
// with status.
func withKubectl(t *testing.T, pods string, status int) {
	t.Helper()
	dir := t.TempDir()
	script := fmt.Sprintf("#!/bin/sh\ncase \" $* \" in *' get '*) echo \"$*\" > %[1]s/asked; cat %[1]s/pods;; *) echo \"$*\"; exit %[2]d;; esac\n", dir, status)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "kubectl"), []byte(script), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "pods"), []byte(pods), 0o600))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	t.Cleanup(func() {
		if asked, err := os.ReadFile(filepath.Join(dir, "asked")); err == nil {
			assert.Contains(t, string(asked), "--selector=app.kubernetes.io/component=etcd-statefulset")
		}
	})
}

func podOf(release, name, ready string) string {
	return fmt.Sprintf(`{"metadata":{"name":%q,"labels":{"app.kubernetes.io/part-of":%q}},"status":{"phase":"Running","conditions":[{"type":"Ready","status":%q}]}}`, name, release, ready)
}

func ran(args ...string) (out, log string, code exitcode.Code) {
	var printed, logged bytes.Buffer
	code = runPlugin(args, streams{out: &printed, log: &logged})
	return strings.TrimSpace(printed.String()), logged.String(), code
}

func TestThePluginRunsACommandInTheFirstPodThatIsReady(t *testing.T) {
	withKubectl(t, `{"items":[`+podOf("main", "main-0", "False")+","+podOf("main", "main-1", "True")+","+podOf("main", "main-2", "True")+`]}`, 0)
	const run = "exec main-1 --stdin --container=etcd -- /etcd-wrapper "
	for command, want := range map[string]string{
		"status":                       run + "status --cluster",
		"status -o json":               run + "status --cluster -o json",
		"--pod=main-2 status":          strings.Replace(run, "main-1", "main-2", 1) + "status",
		"members":                      run + "etcdctl member list --write-out=table",
		"-n etcd backup list":          "--namespace=etcd " + run + "backup list",
		"--context c backup verify -h": "--context=c " + run + "backup verify -h",
	} {
		out, log, code := ran(strings.Fields(command)...)
		assert.Equal(t, want, out)
		assert.Equal(t, exitcode.Clean, code, log)
	}
}

func TestWhatACommandInAPodEndsWithIsTheExitStatus(t *testing.T) {
	withKubectl(t, `{"items":[`+podOf("main", "main-0", "False")+`]}`, 3)
	out, log, code := ran("status")
	assert.Contains(t, out, "exec main-0 ", "no pod is ready, and this one runs")
	assert.Equal(t, exitcode.Code(3), code)
	assert.Empty(t, log, "the command has said what is wrong")
}

func TestThePluginSaysWhatItLacks(t *testing.T) {
	withKubectl(t, `{"items":[`+podOf("a", "a-0", "True")+","+podOf("b", "b-0", "True")+`]}`, 0)
	_, log, code := ran("status")
	assert.Contains(t, log, "the namespace has several releases, a, b: name one with --release")
	assert.Equal(t, exitcode.Usage, code)
	_, log, _ = ran("--pot=x", "status")
	assert.Contains(t, log, "--pot: no such flag")
	_, log, _ = ran("-n")
	assert.Contains(t, log, "-n: a value is missing")
	out, _, code := ran("--help")
	assert.Equal(t, exitcode.Clean, code)
	assert.Contains(t, out, "kubectl etcd [flags] COMMAND")

	withKubectl(t, `{"items":[]}`, 0)
	_, log, _ = ran("-r", "main", "status")
	assert.Contains(t, log, "no pod of an etcd runs here")
}

func TestThePluginIsKnownByItsName(t *testing.T) {
	assert.True(t, isPlugin("/root/.krew/bin/kubectl-etcd"))
	assert.False(t, isPlugin("/etcd-wrapper"))
}
