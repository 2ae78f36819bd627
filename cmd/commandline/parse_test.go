package commandline

import (
	"bytes"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// commands are a program's with a command that passes its arguments on.
type commands struct {
	Start StartEtcd `cmd:"" name:"start-etcd"`
	Tool  struct {
		Args []string `arg:"" optional:""`
	} `cmd:"" name:"tool" passthrough:""`
}

// Kubernetes makes variables of Service names; the reference program knows flags with one dash.
func TestTheCommandLineIsReadAsGoReadsFlags(t *testing.T) {
	t.Setenv("ETCD_WRAPPER_ETCD_CLIENT_PORT", "tcp://10.0.0.1:2379")
	t.Setenv("ETCD_WRAPPER_ETCD_READY_TIMEOUT", "")
	t.Setenv("ETCD_WRAPPER_LOG_LEVEL", "warn")
	var line commands
	chosen, err := Parse(&line, []string{
		"start-etcd", "-etcd-client-port=2380", "-backup-restore-tls-enabled=false", "-backup-restore-host-port", "a:1",
	}, io.Discard)
	require.NoError(t, err)
	assert.Same(t, &line.Start, chosen)
	assert.EqualValues(t, 2380, line.Start.EtcdClientPort)
	assert.Equal(t, "a:1", line.Start.SidecarHostPort)
	assert.Equal(t, "warn", line.Start.LogLevel, "a variable whose flag is not given counts")
	assert.Zero(t, line.Start.EtcdReadyTimeout)
}

func TestTheArgumentsOfAnotherProgramAreLeftAlone(t *testing.T) {
	for _, args := range [][]string{
		{"put", "key", "--", "-value"},
		{"lock", "name", "--", "find", "-name", "x", "-type", "f"},
		{"-etcd-server-name", "x"},
	} {
		var line commands
		_, err := Parse(&line, append([]string{"tool"}, args...), io.Discard)
		require.NoError(t, err)
		assert.Equal(t, args, line.Tool.Args)
	}
	untouched := []string{"start-etcd", "--", "-etcd-client-port", "1"}
	assert.Equal(t, untouched, asGoReadsFlags(untouched, nil))
	assert.Equal(t, []string{"start-etcd", "--etcd-server-name=tool", "--etcd-client-port=1"},
		asGoReadsFlags([]string{"start-etcd", "-etcd-server-name", "tool", "-etcd-client-port", "1"}, []string{"tool"}), "a value is none")
}

func TestHelpIsPrintedAndNothingIsLeftToDo(t *testing.T) {
	var out bytes.Buffer
	_, err := Parse(&commands{}, []string{"start-etcd", "--help"}, &out)
	require.ErrorIs(t, err, Done(0))
	assert.Contains(t, out.String(), "--volume-dir")
}

func TestWhatIsWrongNamesTheFlag(t *testing.T) {
	for flag, args := range map[string][]string{
		"--etcd-wrapper-port":       {"--etcd-wrapper-port=0"},
		"--etcd-client-port":        {"--etcd-client-port=70000"},
		"--etcd-ready-timeout":      {"--etcd-ready-timeout=-1s"},
		"--etcd-wrapper-key-path":   {"--etcd-wrapper-cert-path=x"},
		"--etcd-client-key-path":    {"--etcd-client-cert-path=x"},
		"--etcd-config-file":        {"--etcd-config-file=x"},
		"--volume-dir":              {"--volume-dir="},
		"--stored-config-path":      {"--stored-config-path="},
		"--etcd-data-version":       {"--etcd-data-version=3.4"},
		"--defrag-threshold":        {"--defrag-threshold=free=45"},
		"--defrag-max-pause":        {"--defrag-max-pause=-1s"},
		"--log-level":               {"--log-level=loud"},
		"--backup-restore-host-prt": {"--backup-restore-host-prt=:1"},
		"--backup-store":            {"--backup-store=file:///b"},
		"--backup-interval":         {"--standalone", "--backup-interval=0s"},
		"--backup-interval: 2h":     {"--standalone", "--backup-interval=2h"},
		"--backup-spool-limit":      {"--standalone", "--backup-spool-limit=much"},
		"--backup-spool-limit: 1Mi": {"--standalone", "--backup-spool-limit=1Mi"},
		"--backup-recipients":       {"--standalone", "--backup-recipients=x"},
		"--backup-identities":       {"--standalone", "--backup-identities=x"},
		"--backup-signing-key":      {"--standalone", "--backup-signing-key=x"},
		"--backup-trusted-keys":     {"--standalone", "--backup-trusted-keys=x"},
	} {
		_, err := Parse(&commands{}, append([]string{"start-etcd"}, args...), io.Discard)
		require.ErrorContains(t, err, flag)
		assert.NotContains(t, err.Error(), "\n")
	}
}

func TestBackupsAreSetByFlagsAndByTheEnvironment(t *testing.T) {
	t.Setenv("ETCD_WRAPPER_BACKUP_STORE", "s3://bucket/prefix")
	t.Setenv("ETCD_WRAPPER_BACKUP_SPOOL_LIMIT", "512Mi")
	var line commands
	_, err := Parse(&line, []string{"start-etcd", "--standalone", "--backup-keep=points=1h", "-backup-trusted-keys=/keys"}, io.Discard)
	require.NoError(t, err)
	assert.Equal(t, Backups{
		Store: "s3://bucket/prefix", Interval: time.Second, FullSchedule: "0 * * * *", Keep: Keep{Policy: "points=1h", Given: true}, TrustedKeys: "/keys",
		SpoolLimit: 512 << 20,
	}, line.Start.Backups)
	assert.Equal(t, []string{"--backup-trusted-keys=/keys", "--backup-store=s3://bucket/prefix"}, line.Start.Backups.Reading())
}

func TestSizesAreReadAsKubernetesWritesThem(t *testing.T) {
	for text, expected := range map[string]Bytes{"0": 0, "1": 1, "3k": 3000, "1Ki": 1024, "10M": 1e7, "1Gi": 1 << 30, "8191Ti": 8191 << 40} {
		var size Bytes
		require.NoError(t, size.UnmarshalText([]byte(text)), text)
		assert.Equal(t, expected, size)
		assert.Equal(t, text, size.String())
	}
	for _, text := range []string{"", "Gi", "-1", "1.5Gi", "1 Gi", "1gi", "8388608Ti", "1Pi", "0x10"} {
		var size Bytes
		assert.ErrorContains(t, size.UnmarshalText([]byte(text)), "is not a size", text)
	}
}

func TestPathsAreOnTheVolume(t *testing.T) {
	t.Chdir(t.TempDir())
	var line commands
	_, err := Parse(&line, []string{"start-etcd", "--volume-dir=v", "--etcd-wrapper-port=9"}, io.Discard)
	require.NoError(t, err)
	assert.Regexp(t, "^/.*/v/exit_code$", line.Start.RecordPath())
	assert.Equal(t, line.Start.RecordPath()+".crash", line.Start.CrashNotePath())
	assert.Regexp(t, "^/.*/v/new.etcd$", line.Start.DataDir())
	assert.Equal(t, ":9", line.Start.Address())
}

func TestASidecarHasTheDataKeptForEtcd3_5(t *testing.T) {
	for expected, flags := range map[string][]string{
		"3.5":                 nil,
		"3.6":                 {"--standalone"},
		"3.6 with a sidecar":  {"--etcd-data-version=3.6"},
		"3.5 without sidecar": {"--standalone", "--etcd-data-version=3.5"},
	} {
		var line commands
		_, err := Parse(&line, append([]string{"start-etcd"}, flags...), io.Discard)
		require.NoError(t, err)
		assert.Equal(t, expected[:3], line.Start.DataVersion(), expected)
	}
}

// Kubernetes makes three variables of a Service's name; one of them may have the name of a flag.
func TestAServiceWithTheNameOfAFlagIsNoFlag(t *testing.T) {
	t.Setenv("ETCD_WRAPPER_ETCD_WRAPPER_PORT", "tcp://10.0.0.1:9095")
	t.Setenv("ETCD_WRAPPER_ETCD_WRAPPER_SERVICE_HOST", "10.0.0.1")
	t.Setenv("ETCD_WRAPPER_ETCD_WRAPPER_SERVICE_PORT", "9095")
	t.Setenv("ETCD_WRAPPER_BACKUP_RESTORE_HOST_PORT", "tcp://sidecar:8080") // somebody's mistake: there is no such Service
	t.Setenv("ETCD_WRAPPER_ETCD_CLIENT_PORT", "2380")                       // meant, although there is such a Service
	t.Setenv("ETCD_WRAPPER_ETCD_CLIENT_SERVICE_HOST", "10.0.0.2")
	assert.Equal(t, []string{"ETCD_WRAPPER_ETCD_WRAPPER_PORT"}, ForgetServices())
	var line commands
	_, err := Parse(&line, []string{"start-etcd"}, io.Discard)
	require.NoError(t, err)
	assert.EqualValues(t, 9095, line.Start.WrapperPort)
	assert.EqualValues(t, 2380, line.Start.EtcdClientPort)
	assert.Equal(t, "tcp://sidecar:8080", line.Start.SidecarHostPort)
}
