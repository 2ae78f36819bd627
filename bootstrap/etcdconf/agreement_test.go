package etcdconf_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/bootstrap/etcdconf"
)

// TestWhatEtcdAcceptsIsAcceptedWithTheSameValues goes through what plain etcd makes something of, although a stricter
// reader would not.
func TestWhatEtcdAcceptsIsAcceptedWithTheSameValues(t *testing.T) {
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
			expected := etcd.ask(t, yaml)
			require.Empty(t, expected.Refusal, "etcd accepts it")
			assert.Empty(t, differences(expected.Values, valuesOf(parse(t, yaml).Etcd)))
		})
	}
}

// exceptions are all that etcd's reader accepts and this package does not. Each has its reason.
var exceptions = []struct{ lines, why string }{
	{"data-dir: default.etcd", "a path means another place to the sidecar than to the wrapper"},
	{"data-dir: /etc/etcd", "the sidecar may delete the data directory"},
	{"data-dir: ' /var/etcd'", "nobody sees that space"},
	{"wal-dir: wal", "see data-dir"},
	{"ListenMetricsUrls: [{Scheme: http, Host: '127.0.0.1:1'}]", "it is the name of a Go field, which etcd reads by accident"},
	{"Peer-Transport-Security: {}\npeer-transport-security: {}", "two sections that are merged are never meant"},
	{"peer-transport-security: {allowed-cn: [null]}", "an empty name lets certificates without one in"},
	{`name: "a\u200bb"`, "nobody sees that character"},
	{"backend-batch-interval: -1", "loops in etcd spin on a negative interval"},
	{"max-learners: -1", "etcd does not start"},
	{"listen-client-urls: http://127.0.0.1:65536", "etcd does not start"},
	{"listen-client-http-urls: http://localhost:2379", "etcd does not start"},
	{"listen-client-urls: https://0.0.0.0:2379", "etcd does not start: there is no certificate"},
	{"peer-transport-security: {cert-file: /nowhere, key-file: /nowhere}", "etcd does not start"},
	{"peer-transport-security: {cert-file: /nowhere}", "etcd does not start"},
	{"peer-transport-security: {trusted-ca-file: /nowhere}", "etcd does not start"},
	{"peer-transport-security: {allowed-cn: [a], allowed-hostname: [b]}\nlisten-peer-urls: https://127.0.0.1:2380", "etcd does not start"},
	{"name: ''", "etcd does not start, and a member without name counts as not started"},
	{"initial-cluster: other=http://a:1", "etcd does not start: there is no log, and this member is not named"},
	{"initial-cluster: ''", "etcd does not start"},
	{"initial-cluster: 'default=http://a:1,b=http://a:1'", "etcd does not start"},
	{"initial-cluster: default", "etcd does not start"},
	{"auto-compaction-retention: -1h", "etcd compacts all the time"},
	{"auto-compaction-retention: 30 minutes", "etcd does not start"},
	{"cipher-suites: [TLS_X]", "etcd does not start"},
	{"auth-token: none", "etcd does not start"},
	{"v2-deprecation: soon", "nobody knows what is meant"},
	{"election-timeout: 500\nheartbeat-interval: 3689348814741910324", "raft panics"},
	{"experimental-enable-distributed-tracing: true\nexperimental-distributed-tracing-sampling-rate: 1000001", "no such rate"},
	{"grpc-additional-server-options: []", "no such thing can be written in a file"},
}

func TestWhatIsRefusedAlthoughEtcdsReaderTakesIt(t *testing.T) {
	etcd := newOracle(t)
	for _, exception := range exceptions {
		t.Run(exception.lines, func(t *testing.T) {
			yaml := exception.lines + "\n"
			if !strings.HasPrefix(yaml, "data-dir") {
				yaml = minimal + yaml
			}
			require.Empty(t, etcd.ask(t, yaml).Refusal, "else it is no exception")
			refuse(t, yaml)
		})
	}
}

// withLog returns a configuration whose data directory has a log already.
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

// etcd goes by its log then, and looks at nothing of this.
func TestAnInitialClusterThatIsOfNoUseIsNoHarmWhenThereIsALog(t *testing.T) {
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
			assert.Contains(t, warnings[0], "etcd goes by its log")
		}
		refuse(t, minimal+lines)
	}
}

func TestWhatIsTakenButOddIsWarnedOf(t *testing.T) {
	for lines, says := range map[string]string{
		"Pre-Vote: false":            `"Pre-Vote" is read as pre-vote`,
		"Pre-Vote: false\npre-vote:": `"Pre-Vote" is read as pre-vote`,
		"name: a\nname: b":           `name is given twice, again on line 3: the last one counts`,
		"1: a\n1: b":                 `a key is given twice: the last one counts`,
		"name: a\n---\nname: b":      `only the first YAML document counts`,
		"client-transport-security:": `client-transport-security is empty, so nothing in it protects the clients' listeners`,
		"client-transport-security: {cert-file: /nowhere, key-file: /nowhere}": `client-transport-security has no effect: no listener for clients uses TLS`,
	} {
		assert.Contains(t, parse(t, minimal+lines).Warnings, says, lines)
	}
	assert.Empty(t, parse(t, sidecarYAML(t)).Warnings)
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
			t.Skip("the log is the wrapper's; etcd opens any file that jwt names; etcdmain finishes the experimental keys")
		}
		hanging := time.AfterFunc(20*time.Second, func() { panic("it takes for ever") })
		defer hanging.Stop()
		yaml := minimal + lines + "\n"
		checked, err := etcdconf.Parse([]byte(yaml))
		if err != nil {
			var keyError *etcdconf.KeyError
			require.True(t, errors.As(err, &keyError), err)
			return // whether that is an exception, the table says
		}
		if expected := etcd.ask(t, yaml); expected.Refusal == "" && len(checked.Unknown) == 0 {
			require.Empty(t, differences(expected.Values, valuesOf(checked.Etcd)))
		}
	})
}
