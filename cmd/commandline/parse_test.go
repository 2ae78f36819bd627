package commandline

import (
	"bytes"
	"cmp"
	"flag"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/docs"
)

// commands is a command line with a passthrough command.
type commands struct {
	Start StartEtcd `cmd:"" name:"start-etcd"`
	Tool  struct {
		Args []string `arg:"" optional:""`
	} `cmd:"" name:"tool" passthrough:""`
}

func TestParse_likeGoFlags(t *testing.T) {
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
	assert.Equal(t, "warn", line.Start.LogLevel, "without the flag, the environment variable applies")
	assert.Zero(t, line.Start.EtcdReadyTimeout)
}

func TestParse_passthrough(t *testing.T) {
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
		asGoReadsFlags([]string{"start-etcd", "-etcd-server-name", "tool", "-etcd-client-port", "1"}, []string{"tool"}), "a flag's value is not mistaken for a passthrough command")
}

func TestParse_help(t *testing.T) {
	var out bytes.Buffer
	_, err := Parse(&commands{}, []string{"start-etcd", "--help"}, &out)
	require.ErrorIs(t, err, Done(0))
	assert.Contains(t, out.String(), "--volume-dir")
}

func TestParse_errorsNameTheFlag(t *testing.T) {
	for flag, args := range map[string][]string{
		"--etcd-wrapper-port":                               {"--etcd-wrapper-port=0"},
		"--root-password-file requires --standalone":        {"--root-password-file=/password"},
		"--etcd-client-port":                                {"--etcd-client-port=70000"},
		"--etcd-ready-timeout":                              {"--etcd-ready-timeout=-1s"},
		"--etcd-client-key-path":                            {"--etcd-client-cert-path=x"},
		"--etcd-config-file":                                {"--etcd-config-file=x"},
		"--volume-dir":                                      {"--volume-dir="},
		"--stored-config-path":                              {"--stored-config-path="},
		"--etcd-data-version":                               {"--etcd-data-version=3.4"},
		"--defrag-threshold":                                {"--defrag-threshold=free=45"},
		`--defrag-threshold: "-1s" is not a valid duration`: {"--defrag-threshold=free=45%,min=100Mi,pause=-1s"},
		`--defrag-threshold: "5" is not a valid duration (examples:`:   {"--defrag-threshold=free=45%,min=100Mi,pause=5"},
		`--etcd-ready-timeout: "5" is not a valid duration (examples:`: {"--etcd-ready-timeout=5"},
		"--log-level":                                 {"--log-level=loud"},
		"--log-format: missing value":                 {"--log-format"},
		"--backup-interval: missing value":            {"--standalone", "--backup-interval"},
		"--backup-restore-host-prt":                   {"--backup-restore-host-prt=:1"},
		"--backup-store":                              {"--backup-store=file:///b"},
		"--adopt":                                     {"--standalone", "--backup-store=file:///b", "--adopt=beef"},
		`--adopt: "0a1b`:                              {"--standalone", "--backup-store=file:///b", "--adopt=0a1b2c3d4e5f60718293a4b5c6d7e8f9/0"},
		"--backup-interval":                           {"--standalone", "--backup-interval=0s"},
		"--backup-interval: 2h":                       {"--standalone", "--backup-interval=2h"},
		"--backup-interval: -1s":                      {"--standalone", "--backup-store=file:///b", "--backup-ack=stored", "--backup-interval=-1s"},
		"--backup-ack":                                {"--standalone", "--backup-store=file:///b", "--backup-ack=always"},
		"--backup-ack=stored requires --backup-store": {"--standalone", "--backup-ack=stored"},
		"--backup-spool-limit":                        {"--standalone", "--backup-spool-limit=much"},
		"--backup-spool-limit: 1Mi is less than the minimum of 32Mi": {"--standalone", "--backup-spool-limit=1Mi"},
		"--backup-recipients":   {"--standalone", "--backup-recipients=x"},
		"--backup-identities":   {"--standalone", "--backup-identities=x"},
		"--backup-signing-key":  {"--standalone", "--backup-signing-key=x"},
		"--backup-trusted-keys": {"--standalone", "--backup-trusted-keys=x"},
	} {
		_, err := Parse(&commands{}, append([]string{"start-etcd"}, args...), io.Discard)
		require.ErrorContains(t, err, flag)
		assert.NotContains(t, err.Error(), "\n")
	}
}

func TestParse_backups(t *testing.T) {
	t.Setenv("ETCD_WRAPPER_BACKUP_STORE", "s3://bucket/prefix")
	t.Setenv("ETCD_WRAPPER_BACKUP_SPOOL_LIMIT", "512Mi")
	var line commands
	_, err := Parse(&line, []string{"start-etcd", "--standalone", "--backup-keep=points=1h", "-backup-trusted-keys=/keys"}, io.Discard)
	require.NoError(t, err)
	assert.Equal(t, Backups{
		StoreFlags: StoreFlags{Store: "s3://bucket/prefix", TrustedKeys: "/keys"}, KeepFlags: KeepFlags{Keep: "points=1h"},
		Ack: "local", Interval: new(time.Second), FullSchedule: "0 * * * *", SpoolLimit: 512 << 20,
	}, line.Start.Backups)
	assert.Equal(t, []string{"--backup-store=s3://bucket/prefix", "--backup-trusted-keys=/keys"}, line.Start.Backups.Reading())
}

func TestParse_intervalOfStored(t *testing.T) {
	for args, want := range map[string]time.Duration{"--backup-ack=stored": 0, "--backup-ack=stored --backup-interval=20ms": 20 * time.Millisecond} {
		var line commands
		_, err := Parse(&line, append([]string{"start-etcd", "--standalone", "--backup-store=file:///b"}, strings.Fields(args)...), io.Discard)
		require.NoError(t, err)
		assert.Equal(t, want, *line.Start.Backups.Interval, args)
	}
}

func TestBytes(t *testing.T) {
	for text, expected := range map[string]Bytes{"0": 0, "1": 1, "3k": 3000, "1Ki": 1024, "10M": 1e7, "1Gi": 1 << 30, "8191Ti": 8191 << 40} {
		var size Bytes
		require.NoError(t, size.UnmarshalText([]byte(text)), text)
		assert.Equal(t, expected, size)
		assert.Equal(t, text, size.String())
	}
	for _, text := range []string{"", "Gi", "-1", "1.5Gi", "1 Gi", "1gi", "8388608Ti", "1Pi", "0x10"} {
		var size Bytes
		assert.ErrorContains(t, size.UnmarshalText([]byte(text)), "is not a valid size", text)
	}
}

func TestPaths(t *testing.T) {
	t.Chdir(t.TempDir())
	var line commands
	_, err := Parse(&line, []string{"start-etcd", "--volume-dir=v", "--etcd-wrapper-port=9"}, io.Discard)
	require.NoError(t, err)
	assert.Regexp(t, "^/.*/v/exit_code$", line.Start.RecordPath())
	assert.Equal(t, line.Start.RecordPath()+".crash", line.Start.CrashNotePath())
	assert.Regexp(t, "^/.*/v/new.etcd$", line.Start.DataDir())
	assert.Equal(t, ":9", line.Start.Address())
}

func TestDataVersion(t *testing.T) {
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

func TestForgetServices(t *testing.T) {
	t.Setenv("ETCD_WRAPPER_ETCD_WRAPPER_PORT", "tcp://10.0.0.1:9095")
	t.Setenv("ETCD_WRAPPER_ETCD_WRAPPER_SERVICE_HOST", "10.0.0.1")
	t.Setenv("ETCD_WRAPPER_ETCD_WRAPPER_SERVICE_PORT", "9095")
	t.Setenv("ETCD_WRAPPER_BACKUP_RESTORE_HOST_PORT", "tcp://sidecar:8080") // a user error: no such Service exists
	t.Setenv("ETCD_WRAPPER_ETCD_CLIENT_PORT", "2380")                       // the user's variable must be kept even if there is a Service with this name
	t.Setenv("ETCD_WRAPPER_ETCD_CLIENT_SERVICE_HOST", "10.0.0.2")
	assert.Equal(t, []string{"ETCD_WRAPPER_ETCD_WRAPPER_PORT"}, ForgetServices())
	var line commands
	_, err := Parse(&line, []string{"start-etcd"}, io.Discard)
	require.NoError(t, err)
	assert.EqualValues(t, 9095, line.Start.WrapperPort)
	assert.EqualValues(t, 2380, line.Start.EtcdClientPort)
	assert.Equal(t, "tcp://sidecar:8080", line.Start.SidecarHostPort)
}

func TestParse_unknownVariable(t *testing.T) {
	t.Setenv("ETCD_WRAPPER_BACKUP_STOER", "s3://bucket")
	var line commands
	_, err := Parse(&line, []string{"start-etcd"}, io.Discard)
	require.EqualError(t, err, `environment variable ETCD_WRAPPER_BACKUP_STOER: unknown flag --backup-stoer, did you mean "--backup-store"?`)
	_, err = Parse(&line, []string{"tool", "x"}, io.Discard)
	require.NoError(t, err, "commands other than start-etcd ignore unknown variables")
	t.Setenv("ETCD_WRAPPER_BACKUP_STOER", "")
	_, err = Parse(&line, []string{"start-etcd"}, io.Discard)
	require.NoError(t, err, "an unknown variable that is empty is ignored")
}

func TestParse_serviceVariables(t *testing.T) {
	for _, service := range []string{"ETCD_WRAPPER", "ETCD_WRAPPER_PAGE"} {
		for name, value := range map[string]string{
			"SERVICE_HOST": "10.0.0.1", "SERVICE_PORT": "9095", "SERVICE_PORT_HTTP": "9095", "PORT": "tcp://10.0.0.1:9095",
			"PORT_9095_TCP": "tcp://10.0.0.1:9095", "PORT_9095_TCP_PROTO": "tcp", "PORT_9095_TCP_PORT": "9095", "PORT_9095_TCP_ADDR": "10.0.0.1",
		} {
			t.Setenv(service+"_"+name, value)
		}
	}
	var line commands
	_, err := Parse(&line, []string{"start-etcd"}, io.Discard)
	require.NoError(t, err)
	t.Setenv("ETCD_WRAPPER_OTHER_PORT", "9095")
	_, err = Parse(&line, []string{"start-etcd"}, io.Discard)
	require.ErrorContains(t, err, "ETCD_WRAPPER_OTHER_PORT", "the variable is not ignored, because there is no such Service")
}

func TestStartEtcd_flagsAreDocumented(t *testing.T) {
	t.Setenv("HOME", "$HOME")
	rows := docs.Table(t, "flag", "default", "meaning")
	parser, err := New(&commands{}, io.Discard)
	require.NoError(t, err)
	var have []string
	for _, flag := range parser.Model.Children[0].Flags {
		have = append(have, "--"+flag.Name)
		row := docs.Find(rows, "--"+flag.Name)
		if !assert.NotNil(t, row, "add --%s to the flag table in README.md or docs/*.md", flag.Name) {
			continue
		}
		expected := flag.Default
		if flag.Name == "backup-keep" {
			expected = DefaultKeep // start-etcd applies it, although the flag itself has no default: see KeepFlags
		}
		if flag.IsBool() {
			expected = cmp.Or(expected, "false")
		}
		assert.Equal(t, expected, strings.Trim(row[1], "`"), "the documented default of --%s", flag.Name)
	}
	for _, name := range docs.Named(rows) {
		assert.True(t, slices.Contains(have, name), "the documentation lists %s, which is not a flag: remove or rename it", name)
	}
}

// goFlags contains the operator's flags as parsed by Go's flag package, which gardener/etcd-wrapper uses.
type goFlags struct {
	wrapperPort, clientPort           int
	tls                               bool
	hostPort, ca, name, cert, certKey string
	readyTimeout                      time.Duration
}

func readAsGo(args []string) (flags goFlags, rest int, err error) {
	set := flag.NewFlagSet("", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	set.IntVar(&flags.wrapperPort, "etcd-wrapper-port", 9095, "")
	set.IntVar(&flags.clientPort, "etcd-client-port", 2379, "")
	set.BoolVar(&flags.tls, "backup-restore-tls-enabled", false, "")
	set.StringVar(&flags.hostPort, "backup-restore-host-port", ":8080", "")
	set.StringVar(&flags.ca, "backup-restore-ca-cert-bundle-path", "", "")
	set.StringVar(&flags.name, "etcd-server-name", "", "")
	set.StringVar(&flags.cert, "etcd-client-cert-path", "", "")
	set.StringVar(&flags.certKey, "etcd-client-key-path", "", "")
	set.DurationVar(&flags.readyTimeout, "etcd-ready-timeout", 0, "")
	err = set.Parse(args)
	return flags, set.NArg(), err
}

// isValid reports whether Parse must accept the values. Go's flag package does not check ranges or combinations.
func (g goFlags) isValid() bool {
	port := func(n int) bool { return n >= 0 && n <= math.MaxUint16 }
	return port(g.wrapperPort) && g.wrapperPort != 0 && port(g.clientPort) && g.readyTimeout >= 0 && (g.cert == "") == (g.certKey == "")
}

// FuzzCommandLine checks that Parse never panics, that errors are single sentences, and that Parse agrees with Go's
// flag package on the values of every command line that both accept.
func FuzzCommandLine(f *testing.F) {
	for _, line := range []string{
		"", "--etcd-client-port=0x50", "-etcd-wrapper-port\n1_000", "--backup-restore-tls-enabled", "-backup-restore-tls-enabled=F",
		"--backup-restore-tls-enabled=T\n--backup-restore-ca-cert-bundle-path\n/ca", "--etcd-ready-timeout=1m30s", "--etcd-ready-timeout=0",
		"--etcd-client-cert-path=a\n--etcd-client-key-path=b", "--etcd-client-cert-path=a", "--backup-restore-host-port=\n--etcd-server-name\n--x",
		"--etcd-wrapper-port=0", "--nope", "--", "-h", "--volume-dir=", "--etcd-server-name=${HOME}", "--etcd-wrapper-port=+9095", "---x", "-=",
	} {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		if !utf8.ValidString(line) {
			t.Skip("kong requires valid UTF-8")
		}
		args := strings.Split(line, "\n")
		if line == "" {
			args = nil
		}
		var commands commands
		_, err := Parse(&commands, append([]string{"start-etcd"}, args...), io.Discard)
		reference, rest, goErr := readAsGo(args)
		if err != nil {
			require.NotContains(t, err.Error(), "\n")
			require.False(t, goErr == nil && rest == 0 && reference.isValid(), "Go's flag package accepts the arguments: %v", err)
			return
		}
		if goErr != nil || rest > 0 {
			return // the arguments contain a flag that gardener/etcd-wrapper lacks
		}
		require.Equal(t, reference, commands.Start.asGo())
	})
}

func (f *StartEtcd) asGo() goFlags {
	return goFlags{
		wrapperPort: int(f.WrapperPort), clientPort: int(f.EtcdClientPort), tls: f.SidecarTLS, hostPort: f.SidecarHostPort,
		ca: f.SidecarCAPath, name: f.EtcdServerName, cert: f.EtcdCertPath, certKey: f.EtcdKeyPath, readyTimeout: f.EtcdReadyTimeout,
	}
}
