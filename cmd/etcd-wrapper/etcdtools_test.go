package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestEtcdutl(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, runEtcdutl([]string{"help"}, &out))
	for _, command := range []string{"snapshot", "defrag", "hashkv", "migrate"} {
		assert.Contains(t, out.String(), command)
	}
	assert.ErrorContains(t, runEtcdutl([]string{"nonsense"}, &out), "unknown command")
}

func TestEtcdctl_missingConfiguration(t *testing.T) {
	t.Setenv("ETCD_WRAPPER_STORED_CONFIG_PATH", filepath.Join(t.TempDir(), "missing"))
	_, err := etcdctlSettings()
	require.ErrorContains(t, err, "cannot read the stored configuration")
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestEtcdctl_addsMissingFlags(t *testing.T) {
	const secure = `
advertise-client-urls: https://etcd-0.ns.svc:2379
client-transport-security: {cert-file: /s/tls.crt, key-file: /s/tls.key, trusted-ca-file: /s/ca.crt}`
	for name, c := range map[string]struct {
		config      string
		environment map[string]string
		args        []string
		want        []string
	}{
		"plain": {"advertise-client-urls: http://etcd-0:2379", nil, []string{"get", "x"}, []string{"--endpoints=http://etcd-0:2379"}},
		"TLS": {secure, nil, nil, []string{
			"--endpoints=https://etcd-0.ns.svc:2379", "--cacert=/s/ca.crt", "--cert=/s/tls.crt", "--key=/s/tls.key",
		}},
		"own client certificate": {
			secure,
			map[string]string{
				"ETCD_WRAPPER_ETCD_CLIENT_CERT_PATH": "/c/tls.crt", "ETCD_WRAPPER_ETCD_CLIENT_KEY_PATH": "/c/tls.key",
				"ETCD_WRAPPER_ETCD_SERVER_NAME": "etcd-local", "ETCD_WRAPPER_ETCD_CLIENT_PORT": "4711",
			},
			nil,
			[]string{"--endpoints=https://etcd-local:4711", "--cacert=/s/ca.crt", "--cert=/c/tls.crt", "--key=/c/tls.key"},
		},
		"given as flags": {
			secure, nil,
			[]string{"--endpoints=a", "--cert", "b", "--key", "c", "get", "x"},
			[]string{"--cacert=/s/ca.crt"},
		},
		"given to etcdctl's environment": {
			secure,
			map[string]string{"ETCDCTL_ENDPOINTS": "a", "ETCDCTL_CACERT": "b", "ETCDCTL_CERT": "c", "ETCDCTL_KEY": "d"},
			nil, nil,
		},
		"nothing known": {"", nil, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "etcd.conf.yaml")
			require.NoError(t, os.WriteFile(path, []byte(c.config), 0o600))
			t.Setenv("ETCD_WRAPPER_STORED_CONFIG_PATH", path)
			for key, value := range c.environment {
				t.Setenv(key, value)
			}
			known, err := etcdctlSettings()
			require.NoError(t, err)
			require.Equal(t, c.want, missingFlags(known, c.args))
		})
	}
}

func TestEtcdutl_withoutArguments(t *testing.T) {
	own := os.Args
	t.Cleanup(func() { os.Args = own })
	os.Args = []string{"etcd-wrapper", "etcdutl"} // as in a real invocation
	var out bytes.Buffer
	require.NoError(t, runEtcdutl(nil, &out))
	assert.Contains(t, out.String(), "snapshot")
}

func TestEtcdutl_usageErrorsGoToStderr(t *testing.T) {
	var out bytes.Buffer
	require.Error(t, runEtcdutl([]string{"hashkv"}, &out))
	assert.Empty(t, out.String())
}

func TestNeedsMember(t *testing.T) {
	for _, args := range [][]string{{"version"}, {"help", "get"}, {"get", "--help"}, {"completion", "bash"}, {}, {"--debug", "version"}} {
		assert.False(t, needsMember(args), "%v", args)
	}
	for _, args := range [][]string{{"get", "version"}, {"member", "list"}, {"--debug", "endpoint", "health"}} {
		assert.True(t, needsMember(args), "%v", args)
	}
}

func TestComplete_wordsOfEtcdsTools(t *testing.T) {
	own := os.Args
	t.Cleanup(func() { os.Args = own })
	for line, want := range map[string]string{
		"etcdctl ": "member\t", "etcdctl mem": "member\t", "etcdctl member ": "list\t", "etcdctl get --pre": "--prefix\t", "etcdutl snap": "snapshot\t",
		"etcdutl snapshot ": "restore\t", "backup ": "list\t",
	} {
		stdout, out := os.Stdout, printed(t)
		os.Stdout = out // etcdctl only prints to os.Stdout
		run(append([]string{"__complete"}, strings.Split(line, " ")...), streams{out: out, log: io.Discard})
		os.Stdout = stdout
		text, err := os.ReadFile(out.Name())
		require.NoError(t, err)
		assert.Contains(t, "\n"+string(text), "\n"+want, line)
	}
}

func printed(t *testing.T) *os.File {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "out"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = file.Close() })
	return file
}

func TestCompletion_bashSkipsDirectives(t *testing.T) {
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("SKIPPED: there is no bash")
	}
	script := `etcd-wrapper() { printf 'member\thelp\nmake-mirror\thelp\n:4\n'; }
` + bashCompletion + `COMP_LINE='etcd-wrapper etcdctl m' COMP_POINT=22
_etcd_wrapper etcd-wrapper
echo "${COMPREPLY[@]}"`
	out, err := exec.Command("bash", "-c", script).CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.Equal(t, "member make-mirror\n", string(out))
}
