package endtoend_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/harness"
)

func TestInvalidCommandLine_namesTheFlag(t *testing.T) {
	t.Parallel()
	untouched := []string{t.TempDir(), t.TempDir()}
	volume, store := "--volume-dir="+untouched[0], "--backup-store=file://"+untouched[1]
	t.Cleanup(func() {
		for _, dir := range untouched {
			found, err := os.ReadDir(dir)
			require.NoError(t, err)
			assert.Empty(t, found, "a rejected command line must not create files")
		}
	})
	for flag, args := range map[string][]string{
		"--nope":                         {"start-etcd", "--nope"},
		"--etcd-ready-timeout":           {"start-etcd", "--etcd-ready-timeout=-1s"},
		"--etcd-wrapper-port":            {"start-etcd", "--etcd-wrapper-port=70000"},
		"--backup-restore-host-port":     {"start-etcd", "--backup-restore-host-port=http://localhost:8080", "--volume-dir=" + t.TempDir()},
		"--etcd-config-file":             {"start-etcd", "--etcd-config-file=x"},
		"--etcd-client-key-path":         {"start-etcd", "--etcd-client-cert-path=x"},
		"--log-level":                    {"start-etcd", "--log-level=loud"},
		"--recover=never requires":       {"start-etcd", "--recover=never"},
		"--backup-store requires":        {"start-etcd", "--backup-store=file:///b"},
		"--backup-store: must be azblob": {"start-etcd", "--standalone", "--backup-store=ftp://b", volume},
		"--backup-store: s3:// does not": {"start-etcd", "--standalone", "--backup-store=s3://b/p?colour=red", volume},
		"--backup-full-schedule":         {"start-etcd", "--standalone", "--backup-full-schedule=0 0 31 2 *", volume},
		"--backup-keep":                  {"start-etcd", "--standalone", "--backup-keep=points=ever", volume},
		"--backup-recipients":            {"start-etcd", "--standalone", store, "--backup-recipients=/dev/null", volume},
		"--backup-identities":            {"start-etcd", "--standalone", store, "--backup-identities=/nowhere", volume},
		"--backup-signing-key":           {"start-etcd", "--standalone", store, "--backup-signing-key=/dev/null", volume},
		"--backup-trusted-keys":          {"start-etcd", "--standalone", store, "--backup-trusted-keys=/nowhere", volume},
		"--kubernetes=leases requires":   {"start-etcd", "--kubernetes=leases"},
		"--kubernetes: not running":      {"start-etcd", "--standalone", "--kubernetes=leases", volume},
		"--root-password-file requires":  {"start-etcd", "--root-password-file=x"},
		"--root-password-file: /nowhe":   {"start-etcd", "--standalone", "--root-password-file=/nowhere", volume},
		"--root-password-file: /dev/nu":  {"start-etcd", "--standalone", "--root-password-file=/dev/null", volume},
		"unexpected argument etcd-main":  {"start-etcd", "etcd-main"},
	} {
		t.Run(flag, func(t *testing.T) {
			t.Parallel()
			p := harness.NewPodWithStoppedSidecar(t)
			run := p.Run(args...)
			require.Equal(t, 64, run.Exit(harness.Patience))
			lines := run.Log.Matching(harness.Line{"level": "error"})
			require.Len(t, lines, 1, "number of errors")
			assert.Contains(t, lines[0]["error"], flag, "the error names the flag")
		})
	}
}

func TestEnvironmentVariablesSetFlags(t *testing.T) {
	t.Parallel()
	p := harness.NewPod(t)
	p.WithoutQuorum()
	p.Env = []string{"ETCD_WRAPPER_ETCD_READY_TIMEOUT=1s"}
	require.Equal(t, 75, p.Start().Exit(harness.Patience))

	p.Env = []string{"ETCD_WRAPPER_ETCD_READY_TIMEOUT=soon"}
	run := p.Start()
	require.Equal(t, 64, run.Exit(harness.Patience))
	assert.NotEmpty(t, run.Log.FindText("ready-timeout"), "the log names the variable")
}

func TestOperatorsArgumentsAreAccepted(t *testing.T) {
	t.Parallel()
	p := harness.NewPod(t)
	run := p.Start("--backup-restore-tls-enabled=false", "--backup-restore-ca-cert-bundle-path=", "--etcd-server-name=",
		"--etcd-client-cert-path=", "--etcd-client-key-path=", "--etcd-client-port=2379", "--etcd-ready-timeout=0s")
	run.AwaitReady()
	run.Shutdown()
}

func TestVersion_etcdAndGo(t *testing.T) {
	t.Parallel()
	output := harness.Output(t, "version")
	assert.Regexp(t, `(?m)^etcd-wrapper \S+$`, output)
	assert.Regexp(t, `(?m)^etcd 3\.6\.\d+$`, output)
	assert.Regexp(t, `(?m)^go1\.\d+`, output)
}

func TestDumpedStateMachine_matchesCommitted(t *testing.T) {
	t.Parallel()
	committed, err := os.ReadFile("../../../statemachine.dot")
	require.NoError(t, err)
	assert.Equal(t, string(committed), harness.Output(t, "--dump-fsm"))
	for format, start := range map[string]string{"dot": "digraph", "mermaid": "stateDiagram-v2", "json": "{"} {
		drawn := harness.Output(t, "--dump-fsm=lifecycle."+format)
		assert.Contains(t, drawn, start)
		assert.Contains(t, drawn, "FetchConfig")
	}
}
