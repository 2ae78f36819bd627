package etcdconf_test

import (
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/bootstrap/etcdconf"
)

// parseError parses an invalid configuration and returns the error, which must be a KeyError on one line without
// secrets.
func parseError(t *testing.T, yaml string) *etcdconf.KeyError {
	t.Helper()
	checked, err := etcdconf.Parse([]byte(yaml))
	require.Error(t, err)
	assert.Nil(t, checked)
	var keyError *etcdconf.KeyError
	require.ErrorAs(t, err, &keyError)
	assert.Contains(t, err.Error(), keyError.Key)
	assert.NotContains(t, err.Error(), "hunter2", "the error must not contain secrets")
	assert.NotContains(t, err.Error(), "\n", "the error must be a single line")
	return keyError
}

func TestMalformedDocuments(t *testing.T) {
	for name, test := range map[string]struct{ yaml, key, problem string }{
		"empty":          {"", "", "is empty"},
		"comment":        {"# nothing\n", "", "is empty"},
		"text":           {"hello", "", "a mapping"},
		"list":           {"- name: x", "", "a mapping"},
		"syntax":         {"name: [", "", "invalid YAML"},
		"tab":            {"\tname: x", "", "invalid YAML"},
		"too long":       {minimal + "#" + strings.Repeat("x", 1<<20), "", "1048576"},
		"not JSON":       {minimal + "name: .nan", "", "JSON"},
		"null key":       {minimal + "~: hunter2", "", "JSON"},
		"unknown anchor": {"name: *x", "", "anchor"},
	} {
		t.Run(name, func(t *testing.T) {
			keyError := parseError(t, test.yaml)
			assert.Equal(t, test.key, keyError.Key)
			assert.Contains(t, keyError.Problem, test.problem)
		})
	}
}

// malformedValues lists configurations, each with the key that the error must name and a string that the error must
// contain.
var malformedValues = []struct{ yaml, key, problem string }{
	// types
	{"name: 7", "name", "must be text"},
	{"name: [a]", "name", "not a list"},
	{"initial-cluster-token: {a: hunter2}", "initial-cluster-token", "not a section"},
	{"snapshot-count: hunter2", "snapshot-count", "whole number from 0 to 18446744073709551615, not text"},
	{"snapshot-count: -1", "snapshot-count", "not -1"},
	{"snapshot-count: 1.5", "snapshot-count", "not 1.5"},
	{"max-concurrent-streams: 4294967296", "max-concurrent-streams", "from 0 to 4294967295"},
	{"quota-backend-bytes: 1e30", "quota-backend-bytes", "up to 9223372036854775807"},
	{"quota-backend-bytes: 8Gi", "quota-backend-bytes", "not text"},
	{"pre-vote: 'true'", "pre-vote", "true or false, not text"},
	{"backend-batch-interval: 5s", "backend-batch-interval", "nanoseconds"},
	{"backend-batch-interval: -1", "backend-batch-interval", "negative"},
	{"max-learners: -1", "max-learners", "negative"},
	{"cipher-suites: TLS_X", "cipher-suites", "list of strings"},
	{"cipher-suites: [1]", "cipher-suites", "must be text"},
	{"cipher-suites: [null]", "cipher-suites", "empty element"},
	{"socket-options: 1", "socket-options", "section"},
	{"socket-options: {reuse-port: 1}", "socket-options.reuse-port", "true or false"},
	{"discovery-config: {client: {dial-timeout: 2s}}", "discovery-config.client.dial-timeout", "nanoseconds"},
	{"discovery-config: {client: {auth: {password: [hunter2]}}}", "discovery-config.client.auth.password", "not a list"},
	{"grpc-additional-server-options: [null]", "grpc-additional-server-options", "cannot be set"},
	{`name: "a\u0000b"`, "name", "non-printable"},
	// unchecked type assertions in etcd's parser
	{"peer-transport-security: x", "peer-transport-security", "section"},
	{"peer-transport-security:", "peer-transport-security", "not empty"},
	{"enable-distributed-tracing: true\ndistributed-tracing-sampling-rate: 1000001", "distributed-tracing-sampling-rate", "1000000"},
	{
		"experimental-enable-distributed-tracing: true\nexperimental-distributed-tracing-sampling-rate: 1000001",
		"distributed-tracing-sampling-rate", "1000000",
	},
	{"ServerFeatureGate: null", "ServerFeatureGate", "not a configuration key; remove it"},
	{"zaploggerbuilder: {}", "zaploggerbuilder", "not a configuration key; remove it"},
	{"Peer-Transport-Security:", "peer-transport-security", "not empty"},
	{"CIPHER-SUITES: x", "cipher-suites", "list of strings"},
	{"client-transport-security: [x]", "client-transport-security", "not a list"},
	{"experimental-initial-corrupt-check: 1", "experimental-initial-corrupt-check", "true or false"},
	{"experimental-compact-hash-check-enabled: 'yes'", "experimental-compact-hash-check-enabled", "true or false"},
	{"experimental-snapshot-catch-up-entries: x", "experimental-snapshot-catch-up-entries", "whole number"},
	// directories
	{"data-dir:", "data-dir", "required"},
	{"data-dir: ''", "data-dir", "required"},
	{"data-dir: default.etcd", "data-dir", "absolute"},
	{"data-dir: /", "data-dir", "system"},
	{"data-dir: /tmp/..", "data-dir", "system"},
	{"data-dir: /var/", "data-dir", "system"},
	{"data-dir: /home/../etc/etcd", "data-dir", "system"},
	{"data-dir: /proc/self/cwd", "data-dir", "system"},
	{`data-dir: "/var/etcd\n"`, "data-dir", "white space"},
	{"wal-dir: wal", "wal-dir", "absolute"},
	{"wal-dir: /dev/shm", "wal-dir", "system"},
	// URLs
	{"listen-peer-urls: foo", "listen-peer-urls", `"foo" is not a URL of the form scheme://host:port`},
	{"listen-client-urls: http://0.0.0.0:2379,foo", "listen-client-urls", `"foo"`},
	{"listen-client-urls: http://0.0.0.0:2379,", "listen-client-urls", `""`},
	{"listen-client-urls: http://user:hunter2@0.0.0.0", "listen-client-urls", `"http://redacted@0.0.0.0"`},
	{"listen-client-urls: http://" + strings.Repeat("x", 200), "listen-client-urls", "x…"},
	{"listen-client-http-urls: ftp://0.0.0.0:21", "listen-client-http-urls", "scheme"},
	{"listen-client-http-urls: http://localhost:2379", "listen-client-http-urls", "already in listen-client-urls"},
	{"listen-metrics-urls: http://0.0.0.0", "listen-metrics-urls", "host:port"},
	{"initial-advertise-peer-urls: http://etcd:2380/path", "initial-advertise-peer-urls", "no path"},
	{"initial-advertise-peer-urls: http://:2380", "initial-advertise-peer-urls", "host"},
	{"advertise-client-urls: '%zz'", "advertise-client-urls", "URL"},
	{"advertise-client-urls: unix:///tmp/etcd.sock", "advertise-client-urls", "host and a port"},
	{"listen-peer-urls: http://etcd-main-0:2380", "listen-peer-urls", "IP address"},
	{"listen-peer-urls: http://user:hunter2@etcd:2380", "listen-peer-urls", "redacted"},
	{"listen-peer-urls: http://127.0.0.1:65536", "listen-peer-urls", "port"},
	{"cors: foo", "cors", "URL"},
	{"cors: '*,http://a:1'", "cors", "URL"},
	// membership
	{"name: ''", "name", "empty"},
	{"initial-cluster: ''", "initial-cluster", "this member"},
	{"initial-cluster: other=http://127.0.0.1:2380", "initial-cluster", "this member"},
	{"initial-cluster: http://127.0.0.1:2380", "initial-cluster", "name=scheme://host:port"},
	{"initial-cluster: default=http://127.0.0.1", "initial-cluster", "name=scheme://host:port"},
	{"initial-cluster: default=http://user:hunter2@etcd", "initial-cluster", "redacted"},
	{"initial-cluster: 'default=http://a:1,b=http://a:1'", "initial-cluster", "two members"},
	{"initial-cluster: default=http://127.0.0.1:9999", "initial-advertise-peer-urls", "use the same URLs in both"},
	{"initial-cluster: default=https://localhost:2380", "initial-advertise-peer-urls", "https://localhost:2380"},
	{"initial-cluster: default=http://10.0.0.2:2380\ninitial-advertise-peer-urls: http://10.0.0.1:2380", "initial-advertise-peer-urls", "10.0.0.2"},
	{"initial-cluster: 'default=http://a:1,default=http://a:2'\ninitial-advertise-peer-urls: http://a:1", "initial-advertise-peer-urls", "a:2"},
	{"initial-cluster: 'default=http://10.0.0.2:2380,b=http://b:1'\ninitial-advertise-peer-urls: http://10.0.0.1:2380", "initial-advertise-peer-urls", "10.0.0.2"},
	{"initial-cluster-state: old", "initial-cluster-state", `"old"`},
	{"initial-cluster: default=http://a:1\ndiscovery-srv: example.org", "", "discovery"},
	{"discovery-config: {token: hunter2}", "discovery-config", "discovery-endpoints"},
	// limits
	{"heartbeat-interval: 0", "heartbeat-interval", ">0"},
	{"heartbeat-interval: 300", "election-timeout", "five times"},
	{"heartbeat-interval: 3689348814741910324", "election-timeout", "five times"},
	{"election-timeout: 0", "election-timeout", "five times"},
	{"election-timeout: 60000", "election-timeout", "50000"},
	{"compact-hash-check-time: 0", "compact-hash-check-time", ">0"},
	{"experimental-compact-hash-check-time: 0", "compact-hash-check-time", ">0"},
	{"auto-compaction-mode: sometimes", "auto-compaction-mode", `"sometimes"`},
	{"auto-compaction-mode: ''", "auto-compaction-mode", "undefined"},
	{"auto-compaction-retention: 30 minutes", "auto-compaction-retention", "such as 30m"},
	{"auto-compaction-retention: '-1'", "auto-compaction-retention", "such as 30m"},
	{"auto-compaction-retention: -1h", "auto-compaction-retention", "such as 30m"},
	{"auto-compaction-retention: '9999999999'", "auto-compaction-retention", "exceeds the maximum of"},
	{"auto-compaction-retention: 30", "auto-compaction-retention", "quotes"},
	{"tls-min-version: TLS1.1", "tls-min-version", `"TLS1.1"`},
	{"tls-max-version: latest", "tls-max-version", `"latest"`},
	{"tls-min-version: TLS1.3\ntls-max-version: TLS1.2", "tls-max-version", "greater than"},
	{"tls-min-version: TLS1.3\ncipher-suites: [TLS_RSA_WITH_AES_128_CBC_SHA]", "cipher-suites", "TLS1.3"},
	{"cipher-suites: [TLS_X]", "cipher-suites", "TLS_X"},
	{"feature-gates: Foo=true", "feature-gates", "Foo"},
	{"feature-gates: InitialCorruptCheck", "feature-gates", "missing bool"},
	{"feature-gates: InitialCorruptCheck=maybe", "feature-gates", "maybe"},
	{"feature-gates: LeaseCheckpointPersist=true", "feature-gates", "requires"},
	{
		"feature-gates: InitialCorruptCheck=true\nexperimental-initial-corrupt-check: true",
		"experimental-initial-corrupt-check", "both",
	},
	{"corrupt-check-time: 1\nexperimental-corrupt-check-time: 1", "experimental-corrupt-check-time", "replaces"},
	{
		"peer-transport-security: {skip-client-san-verification: true}\nexperimental-peer-skip-client-san-verification: true",
		"experimental-peer-skip-client-san-verification", "same time",
	},
	{"log-level: loud", "log-level", `"loud"`},
	{"auth-token: none", "auth-token", "jwt"},
	{"auth-token: 'jwt,priv-key=/nowhere'", "auth-token", "jwt"},
	{"v2-deprecation: soon", "v2-deprecation", `"soon"`},
}

func TestMalformedValues(t *testing.T) {
	for _, test := range malformedValues {
		t.Run(test.yaml, func(t *testing.T) {
			yaml := test.yaml
			if !strings.HasPrefix(yaml, "data-dir") {
				yaml = minimal + yaml
			}
			keyError := parseError(t, yaml)
			assert.Equal(t, test.key, keyError.Key, keyError.Problem)
			assert.Contains(t, keyError.Problem, test.problem)
		})
	}
}

func TestMalformedTransportSecurity(t *testing.T) {
	dir := certificateFiles(t)
	in := func(yaml string) string {
		return strings.NewReplacer("PAIR", "cert-file: "+dir+"/tls.crt, key-file: "+dir+"/tls.key", "DIR", dir).Replace(yaml)
	}
	for _, test := range []struct{ url, section, key, problem string }{
		{"https", "{}", "cert-file", "is required because listen-"},
		{"unixs", "{trusted-ca-file: DIR/tls.crt}", "cert-file", "is required because listen-"},
		{"https", "{cert-file: DIR/tls.crt}", "key-file", "is required if "},
		{"https", "{key-file: DIR/tls.key}", "cert-file", "is required if "},
		{"https", "{cert-file: DIR/none, key-file: DIR/tls.key}", "cert-file", "DIR/none\": no such file"},
		{"https", "{cert-file: DIR, key-file: DIR/tls.key}", "cert-file", "regular"},
		{"https", "{cert-file: /dev/zero, key-file: DIR/tls.key}", "cert-file", "regular"},
		{"https", "{cert-file: DIR/text.pem, key-file: DIR/tls.key}", "cert-file", "no PEM certificate"},
		{"https", "{cert-file: DIR/broken.pem, key-file: DIR/tls.key}", "cert-file", "DIR/broken.pem"},
		{"https", "{cert-file: DIR/tls.crt, key-file: DIR/none}", "key-file", "DIR/none"},
		{"https", "{cert-file: DIR/tls.crt, key-file: /dev/null}", "key-file", "regular"},
		{"https", "{cert-file: DIR/tls.crt, key-file: DIR/text.pem}", "key-file", "DIR/text.pem"},
		{"https", "{cert-file: DIR/tls.crt, key-file: DIR/other.key}", "key-file", "does not match"},
		{"https", "{PAIR, client-cert-file: DIR/tls.crt}", "client-key-file", "is required if "},
		{"https", "{PAIR, client-cert-file: DIR/tls.crt, client-key-file: DIR/other.key}", "client-key-file", "does not match"},
		{"https", "{PAIR, trusted-ca-file: DIR/none}", "trusted-ca-file", "no such file"},
		{"https", "{PAIR, trusted-ca-file: DIR/empty.pem}", "trusted-ca-file", "no PEM certificate"},
		{"https", "{PAIR, trusted-ca-file: DIR/broken.pem}", "trusted-ca-file", "DIR/broken.pem"},
		{"https", "{PAIR, trusted-ca-file: DIR/tls.key}", "trusted-ca-file", "DIR/tls.key"},
		{"https", "{PAIR, allowed-cn: [a], allowed-hostname: [b]}", "allowed-cn", "allowed-hostname"},
		{"https", "{client-cert-auth: 1}", "client-cert-auth", "true or false"},
	} {
		for _, side := range []string{"client", "peer"} {
			t.Run(side+" "+test.section, func(t *testing.T) {
				yaml := fmt.Sprintf("listen-%[1]s-urls: %[2]s://127.0.0.1:2377\n%[1]s-transport-security: %[3]s\n",
					side, test.url, test.section)
				keyError := parseError(t, minimal+in(yaml))
				assert.Equal(t, side+"-transport-security."+test.key, keyError.Key, keyError.Problem)
				assert.Contains(t, keyError.Problem, in(test.problem))
			})
		}
	}
}

func TestClientListeners_needACertificate(t *testing.T) {
	for _, key := range []string{"listen-client-http-urls", "listen-metrics-urls"} {
		keyError := parseError(t, minimal+key+": https://127.0.0.1:2377")
		assert.Equal(t, "client-transport-security.cert-file", keyError.Key)
		assert.Contains(t, keyError.Problem, key)
	}
}

func TestKeyErrorKeepsItsCause(t *testing.T) {
	err := parseError(t, minimal+"peer-transport-security: {trusted-ca-file: /nowhere}")
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.EqualError(t, err, `etcd configuration: peer-transport-security.trusted-ca-file: cannot load file "/nowhere": no such file or directory`)
}

func TestKeyErrorReadsAsOneSentence(t *testing.T) {
	assert.EqualError(t, parseError(t, minimal+"listen-client-urls: foo"),
		`etcd configuration: listen-client-urls: "foo" is not a URL of the form scheme://host:port `+
			`(scheme: http, https, unix or unixs; no path)`)
	assert.EqualError(t, parseError(t, "#"), "etcd configuration: is empty")
}
