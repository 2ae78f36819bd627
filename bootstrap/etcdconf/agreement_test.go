package etcdconf_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/pkg/v3/featuregate"
	"go.etcd.io/etcd/server/v3/config"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3discovery"

	"etcd-wrapper/bootstrap/etcdconf"
)

// Parse must accept every input that etcd accepts, including these inputs, which a stricter parser would reject.
func TestParse_acceptsWhatEtcdAccepts(t *testing.T) {
	etcd := newOracle(t)
	for _, lines := range []string{
		"",
		"name: etcd-main-0",
		"name: etcd-main-0\ninitial-cluster:",
		"name: etcd-main-0\ninitial-cluster: default=http://localhost:2380",
		"name: etcd-main-0\ninitial-advertise-peer-urls: http://a:1,http://b:2",
		"name: etcd-main-0\nlisten-peer-urls: http://0.0.0.0:2381\nlisten-client-urls: http://0.0.0.0:2378",
		"listen-client-urls: http://0.0.0.0:2378",
		"Pre-Vote: false",
		"PRE-VOTE: false\npre-vote:",
		"Pre-Vote: false\npre-vote: true",
		"Snapshot-Count: 7",
		"NAME: x",
		"Listen-Client-URLs: http://127.0.0.1:1",
		"Client-Transport-Security: {Client-Cert-Auth: true}",
		"Discovery-Config: {Client: {Endpoints: []}}",
		"initial-cluster-token: 2026-11-21",
		"client-transport-security:",
		"discovery-config:",
		"name: a\nname: b",
		"peer-transport-security: {allowed-cn: [a], allowed-cn: [b]}",
		"name: a\n---\nname: b",
		"name: a\n---\n[",
		"name: a\n...\nrest",
		"client-transport-security: {cert-file: /nowhere, key-file: /nowhere, trusted-ca-file: /nowhere}",
		"client-transport-security: {cert-file: /nowhere}",
		"peer-transport-security: {client-cert-file: /nowhere}",
		"distributed-tracing-sampling-rate: 1000001",
		"advertise-client-urls: 'http://a:'",
		"advertise-client-urls: http://a:65536",
		"listen-metrics-urls: 'http://127.0.0.1:'",
		"grpc-keepalive-interval: -1",
		"grpc-keepalive-min-time: -1\ngrpc-keepalive-timeout: -1",
		"host-whitelist: a,b\ncors: http://a:1,http://b:2",
		"snapshot-count: 1e3",
		"snapshot-count: 1_000",
		"<<: {name: x}",
	} {
		t.Run(lines, func(t *testing.T) {
			yaml := minimal + lines + "\n"
			expected := etcd.parse(t, yaml)
			require.Empty(t, expected.Error, "etcd must accept the input")
			assert.Empty(t, differences(expected.Values, valuesOf(parse(t, yaml).Etcd)))
		})
	}
}

// exceptions lists the inputs that etcd's parser accepts but this package rejects, and why the package rejects them.
var exceptions = []struct{ lines, why string }{
	{"data-dir: default.etcd", "the sidecar would resolve a relative path against a different directory than the wrapper"},
	{"data-dir: /etc/etcd", "the sidecar may delete the data directory"},
	{"data-dir: ' /var/etcd'", "the leading space is easy to overlook"},
	{"wal-dir: wal", "same as for data-dir"},
	{"ListenMetricsUrls: [{Scheme: http, Host: '127.0.0.1:1'}]", "it is the name of a Go field, which etcd accepts by accident"},
	{"Peer-Transport-Security: {}\npeer-transport-security: {}", "etcd would merge the two sections, which is never intended"},
	{"peer-transport-security: {allowed-cn: [null]}", "an empty name allows certificates without a name"},
	{`name: "a\u200bb"`, "the character is invisible"},
	{"backend-batch-interval: -1", "loops in etcd spin on a negative interval"},
	{"max-learners: -1", "etcd does not start"},
	{"listen-client-urls: http://127.0.0.1:65536", "etcd does not start"},
	{"listen-client-http-urls: http://localhost:2379", "etcd does not start"},
	{"listen-client-urls: https://0.0.0.0:2379", "etcd does not start without a certificate"},
	{"peer-transport-security: {cert-file: /nowhere, key-file: /nowhere}", "etcd does not start"},
	{"peer-transport-security: {cert-file: /nowhere}", "etcd does not start"},
	{"peer-transport-security: {trusted-ca-file: /nowhere}", "etcd does not start"},
	{"peer-transport-security: {allowed-cn: [a], allowed-hostname: [b]}\nlisten-peer-urls: https://127.0.0.1:2380", "etcd does not start"},
	{"name: ''", "etcd does not start, and a member without a name would count as not started"},
	{"initial-cluster: other=http://a:1", "etcd does not start without a log, because initial-cluster lacks this member"},
	{"initial-cluster: ''", "etcd does not start"},
	{"initial-cluster: 'default=http://a:1,b=http://a:1'", "etcd does not start"},
	{"initial-cluster: default", "etcd does not start"},
	{"auto-compaction-retention: -1h", "etcd would compact all the time"},
	{"auto-compaction-retention: 30 minutes", "etcd does not start"},
	{"cipher-suites: [TLS_X]", "etcd does not start"},
	{"auth-token: none", "etcd does not start"},
	{"v2-deprecation: soon", "the stage does not exist"},
	{"election-timeout: 500\nheartbeat-interval: 3689348814741910324", "raft panics"},
	{"experimental-enable-distributed-tracing: true\nexperimental-distributed-tracing-sampling-rate: 1000001", "the rate is out of range"},
	{"grpc-additional-server-options: []", "server options cannot be set in a file"},
}

func TestParse_exceptions(t *testing.T) {
	etcd := newOracle(t)
	for _, exception := range exceptions {
		t.Run(exception.lines, func(t *testing.T) {
			yaml := exception.lines + "\n"
			if !strings.HasPrefix(yaml, "data-dir") {
				yaml = minimal + yaml
			}
			require.Empty(t, etcd.parse(t, yaml).Error, "etcd's parser must accept an exception")
			parseError(t, yaml)
		})
	}
}

// withLog returns a configuration whose data directory contains a log.
func withLog(t testing.TB, walDir string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "data")
	wal, lines := filepath.Join(dir, "member", "wal"), "data-dir: "+dir+"\n"
	if walDir != "" {
		wal = filepath.Join(t.TempDir(), walDir)
		lines += "wal-dir: " + wal + "\n"
	}
	require.NoError(t, os.MkdirAll(wal, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(wal, "0000000000000000-0000000000000000.wal"), nil, 0o600))
	return lines
}

// If there is a log, Parse must accept an invalid initial-cluster, because etcd ignores it.
func TestParse_unusableInitialClusterWithLog(t *testing.T) {
	for _, lines := range []string{
		"initial-cluster: other=http://127.0.0.1:2380",
		"initial-cluster: ''",
		"initial-cluster: default",
		"initial-cluster: 'default=http://a:1,b=http://a:1'",
	} {
		for _, walDir := range []string{"", "wal"} {
			yaml := withLog(t, walDir) + lines
			warnings := parse(t, yaml).Warnings
			require.Len(t, warnings, 1, lines)
			assert.Contains(t, warnings[0], "initial-cluster: ")
			assert.Contains(t, warnings[0], "etcd takes the members from its log")
		}
		parseError(t, minimal+lines)
	}
}

func FuzzAgreement(f *testing.F) {
	f.Add("name: x")
	for _, exception := range exceptions {
		f.Add(exception.lines)
	}
	f.Add("Pre-Vote: false\nsnapshot-count: 1e3\nadvertise-client-urls: 'http://a:'")
	etcd := newOracle(f)
	f.Fuzz(func(t *testing.T, lines string) {
		if strings.Contains(strings.ToLower(lines), "log") || strings.Contains(lines, "jwt") || strings.Contains(strings.ToLower(lines), "experimental") {
			t.Skip("log keys are ignored, jwt would make etcd open arbitrary files, and etcdmain completes experimental keys")
		}
		hanging := time.AfterFunc(20*time.Second, func() { panic("no result within 20 s") })
		defer hanging.Stop()
		yaml := minimal + lines + "\n"
		checked, err := etcdconf.Parse([]byte(yaml))
		if err != nil {
			var keyError *etcdconf.KeyError
			require.True(t, errors.As(err, &keyError), err)
			return // TestParse_exceptions tests inputs that only etcd accepts
		}
		if expected := etcd.parse(t, yaml); expected.Error == "" && !strings.Contains(strings.Join(checked.Warnings, ""), "unknown key") {
			require.Empty(t, differences(expected.Values, valuesOf(checked.Etcd)))
		}
	})
}

// oracleEnv makes the test binary parse configurations with etcd's code. A separate process is necessary because
// etcd's parser can panic or exit the process.
const oracleEnv = "ETCDCONF_TEST_ORACLE"

func TestMain(m *testing.M) {
	if path := os.Getenv(oracleEnv); path != "" {
		serveOracle(path)
		return
	}
	os.Exit(m.Run())
}

// A result contains the error or the values from parsing a configuration with etcd's code.
type result struct {
	Error  string            // error from etcd, or "" if etcd accepts the configuration
	Values map[string]string // effective values by field name
}

// serveOracle reads configurations as JSON strings from stdin and prints a result for each of them. The configuration
// file for etcd's code is written to path.
func serveOracle(path string) {
	requests, results := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var document string
		if requests.Decode(&document) != nil {
			return
		}
		if err := os.WriteFile(path, []byte(document), 0o600); err != nil {
			panic(err)
		}
		if err := results.Encode(parseWithEtcd(path)); err != nil {
			panic(err)
		}
	}
}

func parseWithEtcd(path string) result {
	cfg, err := embed.ConfigFromFile(path)
	if err != nil {
		return result{Error: err.Error()}
	}
	// etcdmain sets these values after it reads the file.
	_, _ = cfg.UpdateDefaultClusterFromName(embed.NewConfig().InitialCluster)
	if cfg.V2Deprecation != config.V2Depr1WriteOnlySkipCheck {
		cfg.V2Deprecation = config.V2DeprDefault
	}
	if cfg.WarningUnaryRequestDuration == 0 {
		cfg.WarningUnaryRequestDuration = embed.DefaultWarningUnaryRequestDuration
	}
	return result{Values: valuesOf(cfg)}
}

// valuesOf returns the comparable values of a configuration as strings.
func valuesOf(cfg *embed.Config) map[string]string {
	values := map[string]string{}
	value := reflect.ValueOf(cfg).Elem()
	for field, value := range value.Fields() {
		if !field.IsExported() || field.Type.Kind() == reflect.Func {
			continue
		}
		values[field.Name] = format(value.Interface())
	}
	for _, name := range []string{ // these fields are set by the wrapper, or used only for validation in etcd
		"Logger", "LogOutputs", "LogFormat", "EnableLogRotation", "LogRotationConfigJSON", "LogLevel", "FlagsExplicitlySet",
	} {
		delete(values, name)
	}
	return values
}

func format(value any) string {
	switch v := value.(type) {
	case []url.URL:
		text := []string{}
		for _, u := range v {
			text = append(text, u.String())
		}
		return fmt.Sprint(text)
	case transport.TLSInfo:
		return fmt.Sprint(v.String(), v.AllowedCNs, v.AllowedHostnames, v.SkipClientSANVerify, v.ClientCertFile, v.ClientKeyFile)
	case v3discovery.DiscoveryConfig: // use JSON, because the configuration contains pointers
		text, _ := json.Marshal(v)
		return string(text)
	case featuregate.FeatureGate:
		all := map[featuregate.Feature]bool{}
		for feature := range v.(featuregate.MutableFeatureGate).GetAll() {
			all[feature] = v.Enabled(feature)
		}
		return fmt.Sprint(all)
	default:
		return fmt.Sprintf("%+v", value)
	}
}

// An oracle is a process that parses configurations with etcd's code. The test restarts the process if a
// configuration causes it to exit.
type oracle struct {
	path    string // path of the configuration file for the process
	process *exec.Cmd
	in      io.WriteCloser
	out     *json.Decoder
}

func newOracle(t testing.TB) *oracle {
	o := &oracle{path: filepath.Join(t.TempDir(), "etcd.conf.yaml")}
	t.Cleanup(o.end)
	return o
}

func (o *oracle) parse(t *testing.T, document string) result {
	if o.process == nil {
		o.start(t)
	}
	require.NoError(t, json.NewEncoder(o.in).Encode(document))
	var parsed result
	if err := o.out.Decode(&parsed); err != nil {
		o.end()
		return result{Error: "the process exited"}
	}
	return parsed
}

func (o *oracle) start(t *testing.T) {
	o.process = exec.Command(os.Args[0])
	o.process.Env = append(os.Environ(), oracleEnv+"="+o.path)
	in, err := o.process.StdinPipe()
	require.NoError(t, err)
	out, err := o.process.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, o.process.Start())
	o.in, o.out = in, json.NewDecoder(bufio.NewReader(out))
}

func (o *oracle) end() {
	if o.process == nil {
		return
	}
	_ = o.in.Close()
	_ = o.process.Wait()
	o.process = nil
}

// differences returns the values that differ from those that etcd parsed.
func differences(expected, found map[string]string) (all []string) {
	for name, value := range expected {
		if found[name] != value {
			all = append(all, fmt.Sprintf("%s is %q, not %q", name, found[name], value))
		}
	}
	return all
}

// FuzzParse also finds inputs that make Parse exit the process, because that kills the fuzzing worker.
func FuzzParse(f *testing.F) {
	f.Add([]byte(sidecarYAML(f)))
	for _, line := range []string{
		"", "listen-peer-urls: foo", "cors: x", "initial-cluster: default=http://a:1", "log-level: debug", "name: [", "---",
		"experimental-initial-corrupt-check: 1", "experimental-snapshot-catch-up-entries: 1", "peer-transport-security: {}",
		"client-transport-security: {cert-file: a, key-file: b}", "feature-gates: AllAlpha=true", "quota-backend-bytes: 0x1F",
		"auto-compaction-retention: 1h", "discovery-config: {client: {secure: {}, auth: {}}}", "a: &a [*a]", "<<: {name: x}",
		"CORS: {}", "~: 1", "name: !!binary aGk=", `name: "\x7f"`, "snapshot-count: 1e3", "tls-min-version: TLS1.3",
	} {
		f.Add([]byte(minimal + line))
	}
	f.Fuzz(func(t *testing.T, yaml []byte) {
		if strings.Contains(string(yaml), "jwt") {
			t.Skip("etcd would open any file that the jwt specification names")
		}
		checked, err := etcdconf.Parse(yaml)
		if err != nil {
			var keyError *etcdconf.KeyError
			require.True(t, errors.As(err, &keyError), err)
			require.NotContains(t, err.Error(), "panicked")
			return
		}
		require.True(t, filepath.IsAbs(checked.Etcd.Dir))
	})
}
