package etcdconf_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/server/v3/config"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/features"
	"go.uber.org/zap"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/bootstrap/etcdconf"
	"etcd-wrapper/cmd/docs"
	"etcd-wrapper/cmd/suites/certificates"
)

// minimal is the shortest valid configuration.
const minimal = "data-dir: /var/etcd/data/new.etcd\n"

func parse(t testing.TB, yaml string) *etcdconf.Checked {
	t.Helper()
	checked, err := etcdconf.Parse([]byte(yaml))
	require.NoError(t, err)
	return checked
}

func sidecarYAML(t testing.TB) string {
	t.Helper()
	yaml, err := os.ReadFile(filepath.Join("testdata", "sidecar.yaml"))
	require.NoError(t, err)
	return string(yaml)
}

func TestParseReadsWhatTheSidecarServes(t *testing.T) {
	checked := parse(t, sidecarYAML(t))

	assert.Equal(t, []string{"member-name-prefix", "next-cluster-version-compatible"}, checked.Sidecars)
	assert.Empty(t, checked.Warnings, "the sidecar's keys must not cause warnings")
	cfg := checked.Etcd
	assert.Equal(t, "etcd-main-0", cfg.Name)
	assert.Equal(t, "/var/etcd/data/new.etcd", cfg.Dir)
	assert.Equal(t, int64(8589934592), cfg.QuotaBackendBytes)
	assert.Equal(t, uint64(10000), cfg.SnapshotCount)
	assert.Equal(t, "30m", cfg.AutoCompactionRetention)
	assert.Equal(t, "http://0.0.0.0:2379", cfg.ListenClientUrls[0].String())
	_, _, ok := checked.ServerCertificate()
	assert.False(t, ok)
}

func TestParseKeepsDefaultsForKeysWithoutValue(t *testing.T) {
	cfg := parse(t, minimal+"wal-dir:\ncors:\nlisten-peer-urls:\ncipher-suites:\nexperimental-initial-corrupt-check:\n").Etcd
	defaults := embed.NewConfig()
	assert.Equal(t, defaults.Name, cfg.Name)
	assert.Equal(t, defaults.CORS, cfg.CORS)
	assert.Equal(t, defaults.ListenPeerUrls, cfg.ListenPeerUrls)
	assert.Equal(t, defaults.LogOutputs, cfg.LogOutputs)
	assert.Equal(t, defaults.LogLevel, cfg.LogLevel)
	assert.Equal(t, config.V2DeprDefault, cfg.V2Deprecation)
	assert.Equal(t, embed.DefaultWarningUnaryRequestDuration, cfg.WarningUnaryRequestDuration)
}

func TestParseKeepsNumbersExact(t *testing.T) {
	cfg := parse(t, minimal+"quota-backend-bytes: 9223372036854775807\nmax-request-bytes: 18446744073709551615\n"+
		"snapshot-count: 1e3\nbackend-batch-interval: 100000000\n").Etcd
	assert.Equal(t, int64(9223372036854775807), cfg.QuotaBackendBytes)
	assert.Equal(t, uint(18446744073709551615), cfg.MaxRequestBytes)
	assert.Equal(t, uint64(1000), cfg.SnapshotCount)
	assert.Equal(t, 100*time.Millisecond, cfg.BackendBatchInterval)
}

func TestParseAllowsTheQuotaToBeDisabled(t *testing.T) {
	assert.Equal(t, int64(-1), parse(t, minimal+"quota-backend-bytes: -1").Etcd.QuotaBackendBytes)
}

func TestParse_ignoredKeys(t *testing.T) {
	checked := parse(t, minimal+"Logger: [capnslog]\nlog-outputs: [/tmp/etcd.log]\nlog-format: 7\nenable-log-rotation: true\n"+
		"log-rotation-config-json: '{'\nlog-level: debug\n"+
		"Zap-Logger: {}\nname-: x\n"+
		"client-transport-security: {foo: 1, auto-tls: false}\npeer-transport-security: {bar: [1]}\n")

	var expected []string
	for _, key := range []string{"logger", "enable-log-rotation", "log-format", "log-outputs", "log-rotation-config-json"} {
		expected = append(expected, key+" is ignored because the wrapper writes the etcd log")
	}
	for _, key := range []string{"Zap-Logger", "client-transport-security.foo", "name- (did you mean name?)", "peer-transport-security.bar"} {
		expected = append(expected, "ignoring unknown key "+key)
	}
	assert.ElementsMatch(t, expected, checked.Warnings)
	assert.Equal(t, "debug", checked.Etcd.LogLevel)
	assert.Equal(t, "zap", checked.Etcd.Logger)
	assert.Equal(t, []string{embed.DefaultLogOutput}, checked.Etcd.LogOutputs)
	assert.NoFileExists(t, "/tmp/etcd.log")
}

func TestParse_suggestsKeys(t *testing.T) {
	checked := parse(t, minimal+"quota-backend-byte: 1\nsnapshot_count: 5\nHeartbeat-Intervall: 7\nshapshto-count: 1\nmember-name-prefix: x\n"+
		"backups: 1\nclient-transport-security: {cert-fil: x, member-name-prefix: y}\n")
	for _, key := range []string{
		"Heartbeat-Intervall (did you mean heartbeat-interval?)", "backups",
		"client-transport-security.cert-fil (did you mean client-transport-security.cert-file?)",
		"client-transport-security.member-name-prefix",
		"quota-backend-byte (did you mean quota-backend-bytes?)", "shapshto-count", "snapshot_count (did you mean snapshot-count?)",
	} {
		assert.Contains(t, checked.Warnings, "ignoring unknown key "+key)
	}
}

func TestParse_experimentalKeys(t *testing.T) {
	cfg := parse(t, minimal+"experimental-corrupt-check-time: 60000000000\nexperimental-snapshot-catch-up-entries: 7\n"+
		"experimental-peer-skip-client-san-verification: true\nexperimental-initial-corrupt-check: true\n"+
		"experimental-warning-unary-request-duration: 1000000000\n").Etcd
	assert.Equal(t, time.Minute, cfg.CorruptCheckTime)
	assert.Equal(t, uint64(7), cfg.SnapshotCatchUpEntries)
	assert.True(t, cfg.PeerTLSInfo.SkipClientSANVerify)
	assert.True(t, cfg.ServerFeatureGate.Enabled(features.InitialCorruptCheck))
	assert.Equal(t, time.Second, cfg.WarningUnaryRequestDuration)
}

func TestParseReadsTransportSecurity(t *testing.T) {
	dir := certificateFiles(t)
	pair := fmt.Sprintf("{cert-file: %[1]s/tls.crt, key-file: %[1]s/tls.key, client-cert-auth: true, trusted-ca-file: %[1]s/tls.crt}", dir)
	checked := parse(t, minimal+"listen-client-urls: https://0.0.0.0:2379\nadvertise-client-urls: https://etcd:2379\n"+
		"listen-peer-urls: https://0.0.0.0:2380\nclient-transport-security: "+pair+"\npeer-transport-security: "+pair+"\n")

	assert.Empty(t, checked.Warnings)
	assert.True(t, checked.Etcd.ClientTLSInfo.ClientCertAuth)
	assert.Equal(t, dir+"/tls.crt", checked.Etcd.PeerTLSInfo.TrustedCAFile)
	certFile, keyFile, ok := checked.ServerCertificate()
	assert.True(t, ok)
	assert.Equal(t, []string{dir + "/tls.crt", dir + "/tls.key"}, []string{certFile, keyFile})
}

func TestServerCertificateNeedsTLSAndAPair(t *testing.T) {
	dir := certificateFiles(t)
	pair := fmt.Sprintf("client-transport-security: {cert-file: %[1]s/tls.crt, key-file: %[1]s/tls.key}\n", dir)
	for yaml, expected := range map[string]bool{
		"listen-client-urls: http://0.0.0.0:2379\n" + pair:                                             false,
		"listen-client-urls: https://0.0.0.0:2379\nclient-transport-security: {auto-tls: true}\n":      false,
		"listen-client-urls: https://0.0.0.0:2379\n" + pair:                                            true,
		"listen-client-urls: http://127.0.0.1:2379,unixs://localhost:2377\n" + pair:                    true,
		"listen-client-urls: http://0.0.0.0:2379\nlisten-metrics-urls: https://0.0.0.0:2381\n" + pair:  false,
		"listen-client-urls: http://0.0.0.0:2379\nlisten-client-http-urls: http://0.0.0.0:80\n" + pair: false,
	} {
		_, _, ok := parse(t, minimal+yaml).ServerCertificate()
		assert.Equal(t, expected, ok, yaml)
	}
}

func TestParseLeavesTheLoggerToTheCaller(t *testing.T) {
	cfg := parse(t, sidecarYAML(t)).Etcd
	lg := zap.NewNop()
	require.Nil(t, cfg.ZapLoggerBuilder)
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(lg)
	require.NoError(t, cfg.Validate()) // embed.StartEtcd calls Validate first
	assert.Same(t, lg, cfg.GetLogger())
}

func TestParsePrintsNothing(t *testing.T) {
	capture, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	require.NoError(t, err)
	defer capture.Close()
	stderr := os.Stderr
	defer func() { os.Stderr = stderr }()
	os.Stderr = capture

	parse(t, minimal) // etcd warns about the name "default" and the single port

	printed, err := os.ReadFile(capture.Name())
	require.NoError(t, err)
	assert.Empty(t, string(printed))
}

func TestParseLeaksNoFileDescriptor(t *testing.T) {
	yaml := sidecarYAML(t)
	parse(t, yaml) // the first call opens files that stay open until the process exits
	before := descriptors(t)
	for range 20 {
		parse(t, yaml)
		_, err := etcdconf.Parse([]byte(yaml + "discovery: x"))
		require.Error(t, err)
	}
	assert.LessOrEqual(t, descriptors(t), before)
}

func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("needs /proc")
	}
	return len(entries)
}

// certificateFiles writes two key pairs and some invalid files, and returns their directory.
func certificateFiles(t testing.TB) string {
	t.Helper()
	authority := certificates.NewAuthority(t, "ca")
	authority.Issue("other")
	dir := filepath.Dir(authority.Issue("tls").Cert)
	for name, content := range map[string]string{
		"empty.pem":  "",
		"text.pem":   "hunter2",
		"broken.pem": "-----BEGIN CERTIFICATE-----\naHVudGVyMg==\n-----END CERTIFICATE-----\n",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	return dir
}

// Errors from reading certificates must be reported as temporary, because they also occur during a certificate
// rotation.
func TestParse_unusableCertificatesAreTemporary(t *testing.T) {
	dir := certificateFiles(t)
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	pair := fmt.Sprintf("cert-file: %[1]s/tls.crt, key-file: %[1]s/tls.key", dir)
	for section, temporary := range map[string]bool{
		fmt.Sprintf("{cert-file: %[1]s/tls.crt, key-file: %[1]s/other.key}", dir):  true,
		fmt.Sprintf("{cert-file: %[1]s/none, key-file: %[1]s/tls.key}", dir):       true,
		fmt.Sprintf("{cert-file: %[1]s/broken.pem, key-file: %[1]s/tls.key}", dir): true,
		fmt.Sprintf("{cert-file: %[1]s/empty.pem, key-file: %[1]s/tls.key}", dir):  true,
		fmt.Sprintf("{cert-file: %[1]s/tls.crt, key-file: %[1]s/empty.pem}", dir):  true,
		fmt.Sprintf("{cert-file: %[1]s/fifo, key-file: %[1]s/fifo}", dir):          true,
		fmt.Sprintf("{%s, trusted-ca-file: %s/empty.pem}", pair, dir):              true,
		fmt.Sprintf("{%s, trusted-ca-file: %s/fifo}", pair, dir):                   true,
		fmt.Sprintf("{cert-file: %s/tls.crt}", dir):                                false,
		fmt.Sprintf("{%s, allowed-cn: [a], allowed-hostname: [b]}", pair):          false,
		"{}": false,
	} {
		for _, side := range []string{"client", "peer"} {
			yaml := fmt.Sprintf(minimal+"listen-%[1]s-urls: https://127.0.0.1:2377\n%[1]s-transport-security: %[2]s\n", side, section)
			assert.Equal(t, temporary, errors.Is(parseError(t, yaml), bootstrap.ErrCertificates), yaml)
		}
	}
	assert.NotErrorIs(t, parseError(t, minimal+"snapshot-count: x"), bootstrap.ErrCertificates)
}

func TestParse_unreadableJWTKeysAreTemporary(t *testing.T) {
	dir := certificateFiles(t)
	fifo := filepath.Join(dir, "fifo")
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	for token, temporary := range map[string]bool{
		"jwt,sign-method=RS256,priv-key=" + fifo:                         true,
		"jwt,sign-method=ES256,pub-key=/nowhere,priv-key=/nowhere":       true,
		"jwt,sign-method=none,priv-key=" + filepath.Join(dir, "tls.key"): false,
		"jwt": false,
	} {
		keyError := parseError(t, minimal+"auth-token: '"+token+"'")
		assert.Equal(t, temporary, errors.Is(keyError, bootstrap.ErrCertificates), token)
		assert.Equal(t, "auth-token", keyError.Key)
	}
	key := filepath.Join(dir, "tls.key")
	assert.NotNil(t, parse(t, minimal+"auth-token: 'jwt,sign-method=ES256,priv-key="+key+"'"))
}

// duplicateKeyWarning matches the start of the warning about a duplicate key.
var duplicateKeyWarning = regexp.MustCompile(`^\w+ is set again on line \d+`)

// unknownKeyWarning matches the start of the warning about an unknown key.
var unknownKeyWarning = regexp.MustCompile(`^ignoring unknown key \S+`)

func TestWarnings_areDocumented(t *testing.T) {
	for lines, expected := range map[string]string{
		"log-outputs: []":            "log-outputs is ignored because the wrapper writes the etcd log",
		"nam: x":                     "ignoring unknown key nam (did you mean name?)",
		"Pre-Vote: false":            `"Pre-Vote" is interpreted as pre-vote`,
		"Pre-Vote: false\npre-vote:": `"Pre-Vote" is interpreted as pre-vote`,
		"name: a\nname: b":           `name is set again on line 3; the last value is used`,
		"1: a\n1: b":                 `a key is set more than once; the last value is used`,
		"name: a\n---\nname: b":      `only the first YAML document is used`,
		"client-transport-security:": `client-transport-security is empty, so it does not secure the client listeners`,
		"client-transport-security: {cert-file: /nowhere, key-file: /nowhere}": `client-transport-security has no effect because no client listener uses TLS`,
		"discovery-config:": "discovery-config is empty",
		"initial-cluster: 'default=http://localhost:2380,default=http://a:1,b=http://b:1'": "initial-cluster has more URLs for this member than " +
			"initial-advertise-peer-urls: the member can rejoin a cluster but not create one",
	} {
		warnings := parse(t, minimal+lines).Warnings
		assert.Contains(t, warnings, expected, lines)
		for _, warning := range warnings {
			general := unknownKeyWarning.ReplaceAllString(duplicateKeyWarning.ReplaceAllString(warning, "K is set again on line N"), "ignoring unknown key K")
			assert.Contains(t, docs.Text(t), "| `"+general+"` |", "add it to the table of warnings in docs/*.md")
		}
	}
	assert.Empty(t, parse(t, sidecarYAML(t)).Warnings)
}

// CheckFounding must compare the URLs only if etcd would create a member of a new cluster.
func TestCheckFounding(t *testing.T) {
	const more = "initial-cluster: 'default=http://localhost:2380,default=http://a:1,b=http://b:1'\n"
	for name, c := range map[string]struct {
		yaml string
		err  string // substring of the expected error, or "" for no error
	}{
		"single member":                {minimal, ""},
		"more URLs in initial-cluster": {minimal + more, `"http://localhost:2380" does not match "http://a:1,http://localhost:2380", the URLs of this member in initial-cluster`},
		"with a log":                   {withLog(t, "") + more, ""},
		"with a log in wal-dir":        {withLog(t, "wal") + more, ""},
		"joins a cluster":              {minimal + more + "initial-cluster-state: existing", ""},
		"different address":            {minimal + "initial-cluster: 'default=http://127.0.0.2:2380,b=http://b:1'", "use the same URLs in both"},
		"discovery service":            {minimal + "discovery-srv: example.invalid", ""},
	} {
		err := etcdconf.CheckFounding(t.Context(), parse(t, c.yaml).Etcd)
		if c.err == "" {
			assert.NoError(t, err, name)
		} else {
			assert.ErrorContains(t, err, c.err, name)
		}
	}
}

func TestRefusals_areDocumented(t *testing.T) {
	for lines, prefix := range map[string]string{
		"ListenMetricsUrls: [{Scheme: http}]":                      "NAME: ",
		"Peer-Transport-Security: {}\npeer-transport-security: {}": "SECTION: ",
		"backend-batch-interval: 5s":                               "KEY: ",
	} {
		refusal := parseError(t, minimal+lines)
		assert.Contains(t, docs.Text(t), "| `"+prefix+refusal.Problem+"` |", "add it to the table of refusals in docs/*.md")
	}
}
