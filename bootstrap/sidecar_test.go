package bootstrap_test

import (
	"context"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/cmd/suites/certificates"
	"etcd-wrapper/exitcode"
)

// sidecar starts a server with the handler and returns a client for it.
func sidecar(t *testing.T, handler http.HandlerFunc) *bootstrap.Client {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return clientFor(t, bootstrap.ClientOptions{HostPort: server.Listener.Addr().String()})
}

func clientFor(t *testing.T, options bootstrap.ClientOptions) *bootstrap.Client {
	t.Helper()
	client, err := bootstrap.NewClient(options)
	require.NoError(t, err)
	return client
}

func respondWith(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) }
}

func TestStatus_knownStatuses(t *testing.T) {
	for _, word := range bootstrap.InitializationStatuses {
		for _, body := range []string{string(word), string(word) + "\n", " " + string(word) + "\r\n"} {
			status, err := sidecar(t, respondWith(body)).Status(t.Context())
			require.NoError(t, err)
			assert.Equal(t, word, status)
		}
	}
}

func TestStatus_unknownStatus(t *testing.T) {
	_, err := sidecar(t, respondWith("Polishing\n")).Status(t.Context())
	assert.ErrorContains(t, err, `unknown initialization status "Polishing"`)
}

func TestSidecar_missingResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := bootstrap.HangingClient(t)
		_, err := client.Status(t.Context())
		require.ErrorContains(t, err, ": no response within 15 s")
		assert.ErrorIs(t, err, context.DeadlineExceeded, "callers can detect the timeout")
	})
}

func TestStatus_invalidResponses(t *testing.T) {
	for _, body := range []string{"", "token=secret", "Successful!", "Successful Failed", "\"Successful\"", "secretsecretsecretsecretsecret", "<html>Successful</html>"} {
		_, err := sidecar(t, respondWith(body)).Status(t.Context())
		require.ErrorContains(t, err, "unknown initialization status", "%q", body)
		if body != "" {
			assert.NotContains(t, err.Error(), body)
		}
	}
}

func TestSidecar_paths(t *testing.T) {
	var requested atomic.Value
	client := sidecar(t, func(w http.ResponseWriter, r *http.Request) {
		requested.Store(r.Method + " " + r.URL.String())
		_, _ = io.WriteString(w, "New")
	})
	_, err := client.Status(t.Context())
	require.NoError(t, err)
	assert.Equal(t, "GET /initialization/status", requested.Load())
	require.NoError(t, client.Trigger(t.Context(), bootstrap.Sanity))
	assert.Equal(t, "GET /initialization/start?mode=sanity", requested.Load())
	require.NoError(t, client.Trigger(t.Context(), bootstrap.Full))
	assert.Equal(t, "GET /initialization/start?mode=full", requested.Load())
	config, err := client.Config(t.Context())
	require.NoError(t, err)
	assert.Equal(t, "GET /config", requested.Load())
	assert.Equal(t, "New", string(config))
}

func TestSidecar_bodyInPieces(t *testing.T) {
	client := sidecar(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "10")
		for _, piece := range []string{"Succ", "essful"} {
			_, _ = io.WriteString(w, piece)
			_ = http.NewResponseController(w).Flush()
		}
	})
	status, err := client.Status(t.Context())
	require.NoError(t, err)
	assert.Equal(t, bootstrap.Successful, status)
}

func TestSidecar_invalidReplies(t *testing.T) {
	elsewhere := httptest.NewServer(respondWith("Successful"))
	t.Cleanup(elsewhere.Close)
	for name, test := range map[string]struct {
		handler http.HandlerFunc
		message string
	}{
		"error status": {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "secret", 500) }, "HTTP status 500"},
		"not found":    {http.NotFound, "HTTP status 404"},
		"redirect":     {func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, elsewhere.URL, http.StatusFound) }, "HTTP status 302"},
		"large body":   {respondWith(strings.Repeat("Successful", 1<<10)), "larger than 256 bytes"},
		"endless body": {endless, "larger than 256 bytes"},
		"truncated body": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "10")
			_, _ = io.WriteString(w, "Succ")
		}, "unexpected EOF"},
		"closed connection": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := sidecar(t, test.handler).Status(t.Context())
			require.ErrorContains(t, err, test.message)
			assert.ErrorContains(t, err, "initialization status request to 127.0.0.1:")
			assert.NotContains(t, err.Error(), "secret")
		})
	}
}

func endless(w http.ResponseWriter, r *http.Request) {
	for r.Context().Err() == nil {
		if _, err := io.WriteString(w, "Successful"); err != nil {
			return
		}
	}
}

// Every call must use a new connection. On a reused connection, net/http retries a GET request without a response,
// and reading the status twice would lose a result.
func TestSidecar_newConnectionPerCall(t *testing.T) {
	var connections atomic.Int32
	server := httptest.NewUnstartedServer(respondWith("New"))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	server.Start()
	t.Cleanup(server.Close)
	client := clientFor(t, bootstrap.ClientOptions{HostPort: server.Listener.Addr().String()})
	for range 3 {
		_, err := client.Status(t.Context())
		require.NoError(t, err)
	}
	assert.EqualValues(t, 3, connections.Load())
}

func TestSidecar_callEndsWithItsContext(t *testing.T) {
	client := sidecar(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := client.Config(ctx)
	assert.ErrorIs(t, err, context.DeadlineExceeded)
}

func TestSidecar_ignoresProxies(t *testing.T) {
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1")
	t.Setenv("http_proxy", "http://127.0.0.1:1")
	server := httptest.NewServer(respondWith("New"))
	t.Cleanup(server.Close)
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	require.NoError(t, err)
	_, err = clientFor(t, bootstrap.ClientOptions{HostPort: ":" + port}).Status(t.Context())
	require.NoError(t, err, "an empty host means localhost")
}

func TestNewClient_invalidAddresses(t *testing.T) {
	for _, hostPort := range []string{"", "localhost", "http://localhost:8080", "localhost:", "a:b:c", "host/path:80", "host:http", "host:0", "host:65536", "host:-1", "user@host:80", "ho st:80"} {
		_, err := bootstrap.NewClient(bootstrap.ClientOptions{HostPort: hostPort})
		assert.ErrorContains(t, err, "--backup-restore-host-port", "%q", hostPort)
	}
}

func TestSidecarAddress_withScheme(t *testing.T) {
	_, err := bootstrap.NewClient(bootstrap.ClientOptions{HostPort: "https://etcd-main-local:8080"})
	assert.ErrorContains(t, err, "use <host>:<port>, and set --backup-restore-tls-enabled for HTTPS")
}

func TestTLS_rereadsTheBundle(t *testing.T) {
	server := httptest.NewTLSServer(respondWith("New"))
	t.Cleanup(server.Close)
	bundle := certificates.NewAuthority(t, "stranger").Bundle()
	client := clientFor(t, bootstrap.ClientOptions{HostPort: server.Listener.Addr().String(), TLS: true, CAPath: bundle})

	_, err := client.Status(t.Context())
	require.ErrorContains(t, err, "certificate signed by unknown authority")

	trusted := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	require.NoError(t, os.WriteFile(bundle, trusted, 0o600))
	status, err := client.Status(t.Context())
	require.NoError(t, err)
	assert.Equal(t, bootstrap.New, status)
}

func TestClient_wrongScheme(t *testing.T) {
	plain, secured := httptest.NewServer(respondWith("New")), httptest.NewTLSServer(respondWith("New"))
	t.Cleanup(plain.Close)
	t.Cleanup(secured.Close)
	bundle := certificates.NewAuthority(t, "sidecar").Bundle()
	_, err := clientFor(t, bootstrap.ClientOptions{HostPort: plain.Listener.Addr().String(), TLS: true, CAPath: bundle}).Status(t.Context())
	require.ErrorContains(t, err, ": the sidecar serves plain HTTP, but --backup-restore-tls-enabled is set; configure TLS in the sidecar or remove the flag")
	_, err = clientFor(t, bootstrap.ClientOptions{HostPort: secured.Listener.Addr().String()}).Status(t.Context())
	require.ErrorContains(t, err, ": the sidecar serves HTTPS; set --backup-restore-tls-enabled and --backup-restore-ca-cert-bundle-path")
}

func TestNewClient_invalidCABundles(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty.pem")
	require.NoError(t, os.WriteFile(empty, []byte("not a PEM block"), 0o600))
	fifo := empty + ".fifo"
	require.NoError(t, unix.Mkfifo(fifo, 0o600))
	for path, want := range map[string]string{
		fifo:              "not a regular file", // opening a pipe that has no writer would block
		"":                "required",
		empty:             "contains no certificates",
		empty + ".absent": "no such file",
	} {
		_, err := bootstrap.NewClient(bootstrap.ClientOptions{HostPort: ":8080", TLS: true, CAPath: path})
		require.ErrorContains(t, err, want)
		assert.ErrorContains(t, err, "--backup-restore-ca-cert-bundle-path")
	}
}

func FuzzParseInitializationStatus(f *testing.F) {
	for _, seed := range []string{"New", "Progress", "Successful", "Failed", "Successful\n", "successful", ""} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		status, err := bootstrap.ParseInitializationStatus(body)
		if err == nil {
			assert.Equal(t, strings.TrimSpace(string(body)), string(status))
			assert.Contains(t, bootstrap.InitializationStatuses, status)
		}
	})
}

func TestMode_byExitRecord(t *testing.T) {
	path := filepath.Join(t.TempDir(), "exit_code")
	record := exitcode.NewRecord(path)
	unchanged := func(note []byte) error {
		assert.Equal(t, "the fingerprint", string(note))
		return nil
	}
	mode, reason := bootstrap.ModeAfter(record, unchanged)
	assert.Equal(t, bootstrap.Full, mode)
	assert.Contains(t, reason, "no clean exit record")

	require.NoError(t, record.Write(exitcode.Interrupted))
	mode, reason = bootstrap.ModeAfter(record, func([]byte) error { panic("there is no note") })
	assert.Equal(t, bootstrap.Sanity, mode)
	assert.Contains(t, reason, "interrupt")

	record.Describe(func() []byte { return []byte("the fingerprint") })
	require.NoError(t, record.Write(exitcode.Terminated))
	mode, reason = bootstrap.ModeAfter(record, unchanged)
	assert.Equal(t, bootstrap.Sanity, mode)
	assert.Contains(t, reason, "terminated")

	mode, reason = bootstrap.ModeAfter(record, func([]byte) error { return errors.New("the log is gone") })
	assert.Equal(t, bootstrap.Full, mode)
	assert.Contains(t, reason, "the log is gone")

	require.NoError(t, os.Remove(path+".data"))
	require.NoError(t, os.Mkdir(path+".data", 0o700))
	mode, _ = bootstrap.ModeAfter(record, unchanged)
	assert.Equal(t, bootstrap.Full, mode, "an unreadable note does not count as missing")
}
