package runtime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/cmd/commandline"
	"etcd-wrapper/cmd/suites/certificates"
	"etcd-wrapper/exitcode"
	"etcd-wrapper/lifecycle"
	"etcd-wrapper/readiness/metrics"
	"etcd-wrapper/readiness/status"
)

// server is a Server that records how the runtime configures it.
type server struct {
	protocols []string // "plain" for HTTP; for TLS, the paths of the certificate and the key
	tlsError  error    // returned by UseTLS
}

func (s *server) UseHTTP() { s.protocols = append(s.protocols, "plain") }

func (s *server) UseTLS(cert, key string) error {
	s.protocols = append(s.protocols, cert, key)
	return s.tlsError
}

func newRuntime(t *testing.T, log *bytes.Buffer) (*Runtime, *server) {
	dir := t.TempDir()
	flags := &commandline.StartEtcd{WrapperPort: 9095, VolumeDir: dir, StoredConfigPath: filepath.Join(dir, "etcd.conf.yaml")}
	w, s := New(flags, metrics.New(), zerolog.New(zerolog.SyncWriter(log))), &server{}
	w.Connect(Parts{Server: s, Crash: func(reason error) { t.Errorf("etcd crashed: %v", reason) }})
	t.Cleanup(w.lastRun.busy.Wait)
	return w, s
}

// singleMember returns the configuration of a single-member cluster that listens on free ports, followed by more lines.
func singleMember(t *testing.T, more string) []byte {
	return fmt.Appendf(nil, `name: etcd-0
data-dir: %s
listen-client-urls: http://127.0.0.1:0
advertise-client-urls: http://127.0.0.1:1
listen-peer-urls: http://127.0.0.1:0
initial-advertise-peer-urls: http://127.0.0.1:1
initial-cluster: etcd-0=http://127.0.0.1:1
%s`, filepath.Join(t.TempDir(), "new.etcd"), more)
}

func TestRuntime_fromConfigureToClose(t *testing.T) {
	w, s := newRuntime(t, &bytes.Buffer{})
	require.NoError(t, w.Lock())
	assert.Empty(t, w.Progress())
	require.NoError(t, w.Configure(singleMember(t, "")))
	require.NoError(t, w.Expose())
	assert.Equal(t, []string{"plain"}, s.protocols)
	assert.Empty(t, w.id())

	require.NoError(t, w.Open(t.Context()))
	assert.Regexp(t, "^[0-9a-f]+$", w.id())
	assert.Empty(t, w.Progress(), "the start is complete")
	document := w.Document().Member
	assert.Equal(t, "etcd-0", document.Name)
	assert.Equal(t, w.id(), document.Leader)
	assert.True(t, document.Peers[0].Active && document.Peers[0].Leader, "the only member is the leader")
	require.Eventually(t, func() bool { return w.Readiness().Ready(time.Now()) }, 30*time.Second, 10*time.Millisecond)

	opened, err := w.Close()
	require.NoError(t, err)
	assert.True(t, opened)
	assert.False(t, w.Readiness().Ready(time.Now()))
	assert.Zero(t, w.Document().Member)
	start, stop, _ := w.Durations()
	assert.Positive(t, start)
	assert.Positive(t, stop)
	w.Finish(lifecycle.Outcome{})
	assert.NoFileExists(t, w.flags.CrashNotePath())
}

func TestClose_beforeConfigure(t *testing.T) {
	w, _ := newRuntime(t, &bytes.Buffer{})
	opened, err := w.Close()
	require.NoError(t, err)
	assert.False(t, opened)
	assert.Equal(t, "none", classOf(w))
}

func TestConfigure_keepsACopyAndWarns(t *testing.T) {
	var log bytes.Buffer
	w, _ := newRuntime(t, &log)
	require.Error(t, w.Configure([]byte("name: [")))
	kept, err := os.ReadFile(w.flags.StoredConfigPath)
	require.NoError(t, err)
	assert.Equal(t, "name: [", string(kept), "an invalid configuration is stored too")

	require.NoError(t, w.Configure(singleMember(t, "logger: zap\nnonsense: 1\nforce-new-cluster: true\n")))
	for _, text := range []string{"ignoring unknown key nonsense", "force-new-cluster is set"} {
		assert.Contains(t, log.String(), text)
	}
	assert.Equal(t, []string{
		"logger is ignored because the wrapper writes the etcd log", "ignoring unknown key nonsense",
		"force-new-cluster is set: this start removes all other members from the cluster; delete the setting from etcd's configuration afterwards",
	}, w.Document().ConfigWarnings)
}

func TestConfigOddities_membersThatTheLogLacks(t *testing.T) {
	single := singleMember(t, "")
	three := bytes.Replace(single, []byte("etcd-0=http://127.0.0.1:1\n"), []byte("etcd-0=http://127.0.0.1:1,etcd-1=http://127.0.0.1:2,etcd-2=http://127.0.0.1:3\n"), 1)
	for _, yaml := range [][]byte{single, three} {
		w, _ := newRuntime(t, &bytes.Buffer{})
		require.NoError(t, w.Configure(yaml))
		assert.Empty(t, w.Document().ConfigWarnings)
		require.NoError(t, w.Open(t.Context()))
		warnings := strings.Join(w.Document().ConfigWarnings, "\n")
		assert.Equal(t, len(yaml) > len(single), strings.Contains(warnings, "initial-cluster lists members that this member does not know: etcd-1, etcd-2;"), warnings)
		_, err := w.Close()
		require.NoError(t, err)
	}
}

func TestConfigure_portOfTheWrapper(t *testing.T) {
	w, _ := newRuntime(t, &bytes.Buffer{})
	err := w.Configure(singleMember(t, "listen-metrics-urls: http://127.0.0.1:9095\n"))
	assert.EqualError(t, err, "etcd configuration: listen-metrics-urls: \"http://127.0.0.1:9095\" uses the port of the wrapper's own server; "+
		"change the URL or --etcd-wrapper-port (default 9095)")
	assert.NoError(t, w.Configure(singleMember(t, "listen-metrics-urls: http://127.0.0.1:9096\n")))
}

// force-new-cluster must only take effect once: otherwise, each start would remove the members that have joined since
// the first one.
func TestConfigure_forceNewClusterOnce(t *testing.T) {
	var log bytes.Buffer
	first, _ := newRuntime(t, &log)
	plain := singleMember(t, "")
	forced := append(bytes.Clone(plain), "force-new-cluster: true\n"...)
	next := func(yaml []byte) *Runtime {
		w := New(first.flags, metrics.New(), zerolog.New(zerolog.SyncWriter(&log)))
		w.Connect(Parts{Server: &server{}, Crash: func(reason error) { t.Errorf("etcd crashed: %v", reason) }})
		require.NoError(t, w.Configure(yaml))
		return w
	}
	assert.True(t, next(forced).config.Etcd.ForceNewCluster)
	w := next(forced)
	assert.True(t, w.config.Etcd.ForceNewCluster, "the previous start did not open etcd, so force-new-cluster is still pending")
	require.NoError(t, w.Open(t.Context()))
	_, err := w.Close()
	require.NoError(t, err)

	for range 2 {
		assert.False(t, next(forced).config.Etcd.ForceNewCluster)
	}
	assert.Contains(t, log.String(), "ignoring force-new-cluster, because an earlier start applied it")
	next(plain)
	assert.True(t, next(forced).config.Etcd.ForceNewCluster, "a start without force-new-cluster allows it again")
}

func TestLastExit(t *testing.T) {
	var log bytes.Buffer
	w, _ := newRuntime(t, &log)
	require.NoError(t, exitcode.NewRecord(w.flags.RecordPath()).Write(exitcode.Interrupted))
	assert.Equal(t, "interrupt", classOf(New(w.flags, metrics.New(), zerolog.Nop())))
	word, err := w.Record()
	require.NoError(t, err)
	assert.Equal(t, exitcode.Interrupted, word)

	require.NoError(t, os.Remove(w.flags.RecordPath()))
	require.NoError(t, os.WriteFile(w.flags.CrashNotePath(), []byte("panic: why\ntrace"), 0o600))
	w = New(w.flags, metrics.New(), zerolog.New(&log))
	assert.Equal(t, "crash", classOf(w))
	require.NoError(t, w.Lock())
	w.lastRun.busy.Wait()
	assert.Equal(t, "crash", classOf(w), "the class is still crash after Lock has moved the crash note")
	assert.Contains(t, log.String(), `"reason":"panic: why"`)
	_, err = w.Record()
	require.Error(t, err)
}

func TestFinish_crashKeepsItsNote(t *testing.T) {
	w, _ := newRuntime(t, &bytes.Buffer{})
	require.NoError(t, w.Lock())
	require.NoError(t, w.ForLifecycle(nil).LeaveReason("why"))
	w.Finish(lifecycle.Outcome{Status: exitcode.Crashed})
	assert.Equal(t, "why", exitcode.NewCrashNote(w.flags.CrashNotePath()).PreviousReason())
	w.Finish(lifecycle.Outcome{})
	assert.NoFileExists(t, w.flags.CrashNotePath())
}

func TestExpose_unusableCertificate(t *testing.T) {
	w, s := newRuntime(t, &bytes.Buffer{})
	pair := certificates.NewAuthority(t, "authority").Issue("server")
	config := string(singleMember(t, fmt.Sprintf("client-transport-security: {cert-file: %s, key-file: %s}", pair.Cert, pair.Key)))
	require.NoError(t, w.Configure([]byte(strings.Replace(config, "listen-client-urls: http:", "listen-client-urls: https:", 1))))
	s.tlsError = errors.New("key of another pair")
	err := w.Expose()
	require.ErrorIs(t, err, bootstrap.ErrCertificates)
	require.EqualError(t, err, "key of another pair")
}

func classOf(w *Runtime) string {
	class, _ := lastExitOf(w)
	return class
}

// scriptedSidecar is a sidecar that returns the given statuses one after another. An empty status is a failed request.
type scriptedSidecar struct {
	words []bootstrap.InitializationStatus
}

func (s *scriptedSidecar) Status(context.Context) (bootstrap.InitializationStatus, error) {
	word := s.words[0]
	s.words = s.words[1:]
	if word == "" {
		return "", errors.New("no answer")
	}
	return word, nil
}

func (*scriptedSidecar) Trigger(context.Context, bootstrap.Mode) error { return nil }

func (*scriptedSidecar) Config(context.Context) ([]byte, error) { return []byte("name: x"), nil }

func (*scriptedSidecar) WhyFailed() error { return nil }

func TestSidecarMetrics(t *testing.T) {
	counts := metrics.New()
	words := []bootstrap.InitializationStatus{"New", "Progress", "Failed", "New", "", "New", "New", "Restore", "Successful", "Successful", "Restore"}
	sidecar := &sidecarMetrics{Sidecar: &scriptedSidecar{words}, counts: counts}
	for _, word := range words {
		returned, _ := sidecar.Status(t.Context())
		require.Equal(t, word, returned)
		if word == bootstrap.New {
			require.NoError(t, sidecar.Trigger(t.Context(), bootstrap.Full))
		}
	}
	_, err := sidecar.Config(t.Context())
	require.NoError(t, err)

	w := httptest.NewRecorder()
	counts.Handler(func() status.Document { return status.Document{} }, nil).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for _, line := range []string{
		`initializations_total{mode="full",verdict="failed"} 1`,
		`initializations_total{mode="full",verdict="lost"} 2`,
		`initializations_total{mode="full",verdict="successful"} 1`,
		`initializations_total{mode="unrequested",verdict="successful"} 1`,
		`sidecar_request_duration_seconds_count{call="status",outcome="ok"} 10`,
		`sidecar_request_duration_seconds_count{call="status",outcome="error"} 1`,
		`sidecar_request_duration_seconds_count{call="trigger",outcome="ok"} 4`,
		`sidecar_request_duration_seconds_count{call="config",outcome="ok"} 1`,
	} {
		require.Contains(t, w.Body.String(), "\netcd_wrapper_"+line)
	}
	require.NotContains(t, w.Body.String(), `mode="unrequested",verdict="lost"`, "without a request, a New status is not a lost result")
	require.NotContains(t, w.Body.String(), `verdict="restore"`, "only final statuses are counted as results")
}
