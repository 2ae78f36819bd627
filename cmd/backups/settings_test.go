package backups

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive/retention"
	"etcd-wrapper/cmd/commandline"
	"etcd-wrapper/cmd/docs"
	"etcd-wrapper/readiness/status"
)

func TestDocuments_areDocumented(t *testing.T) {
	rows := docs.Table(t, "command", "fields of its document")
	for command, document := range map[string]any{
		"list": Listing{}, "now": Backup{}, "verify": VerifyResult{}, "export": ExportResult{}, "prune": PruneResult{},
	} {
		row := docs.Find(rows, command)
		require.NotNil(t, row, command)
		for _, field := range fields(reflect.TypeOf(document)) {
			assert.Contains(t, docs.Quoted(row[1]), field, "the row of %q in docs does not contain the field", command)
		}
	}
}

// fields returns the JSON names of a document's fields, including nested ones.
func fields(document reflect.Type) (names []string) {
	for document.Kind() == reflect.Pointer || document.Kind() == reflect.Slice {
		document = document.Elem()
	}
	if document.Kind() != reflect.Struct || !strings.HasPrefix(document.PkgPath(), "etcd-wrapper/") {
		return nil
	}
	for i := range document.NumField() {
		if name, _, _ := strings.Cut(document.Field(i).Tag.Get("json"), ","); name != "" {
			names = append(append(names, name), fields(document.Field(i).Type)...)
		} else if document.Field(i).Anonymous {
			names = append(names, fields(document.Field(i).Type)...)
		}
	}
	return names
}

// flagsOf parses a start-etcd command line and returns its backup flags.
func flagsOf(t *testing.T, args ...string) commandline.Backups {
	var line struct {
		Start commandline.StartEtcd `cmd:"" name:"start-etcd"`
	}
	_, err := commandline.Parse(&line, append([]string{"start-etcd", "--standalone"}, args...), io.Discard)
	require.NoError(t, err)
	return line.Start.Backups
}

func TestRead(t *testing.T) {
	settings, err := Read(flagsOf(t, "--backup-store=file:///b", "--backup-keep=points=7d"))
	require.NoError(t, err)
	assert.Equal(t, "file:///b", settings.Store.String())
	assert.Equal(t, retention.Policy{Points: 7 * 24 * time.Hour}, settings.Policy)
	assert.False(t, settings.Keys.Trusts())
}

func TestRead_defaults(t *testing.T) {
	settings, err := Read(flagsOf(t))
	require.NoError(t, err)
	assert.Nil(t, settings.Store)
	assert.Equal(t, retention.Policy{Points: 24 * time.Hour, Hourly: 24, Daily: 7, Weekly: 4}, settings.Policy)
}

// noBackend is a Backend for tests that only read the flags. Its methods panic.
type noBackend struct{ Backend }

// wrapper starts a server that responds with the flags, and returns its port.
func wrapper(t *testing.T, flags Flags) uint16 {
	mux := http.NewServeMux()
	for pattern, handler := range Routes(flags, noBackend{}, zerolog.Nop()) {
		mux.Handle(pattern, handler)
	}
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return uint16(server.Listener.Addr().(*net.TCPAddr).Port)
}

func TestFind_asksTheWrapper(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	public, _, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	der, err := x509.MarshalPKIXPublicKey(public)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile("trusted", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), 0o600))
	shared := FlagsOf(flagsOf(t, "--backup-store=file:///b", "--backup-keep=points=7d", "--backup-trusted-keys=trusted"), ".")
	assert.Equal(t, filepath.Join(dir, "trusted"), shared.TrustedKeys)
	port := wrapper(t, shared)
	t.Chdir("/")

	settings, err := Find(t.Context(), flagsOf(t), port)
	require.NoError(t, err)
	assert.Equal(t, "file:///b", settings.Store.String())
	assert.Equal(t, retention.Policy{Points: 7 * 24 * time.Hour}, settings.Policy)
	assert.True(t, settings.Keys.Trusts())

	settings, err = Find(t.Context(), flagsOf(t, "--backup-keep=daily=1"), port)
	require.NoError(t, err)
	assert.Equal(t, retention.Policy{Daily: 1}, settings.Policy, "a flag on the command line takes precedence over the wrapper's")

	settings, err = Find(t.Context(), flagsOf(t, "--backup-keep="+commandline.DefaultKeep), port)
	require.NoError(t, err)
	assert.Equal(t, retention.Policy{Points: 24 * time.Hour, Hourly: 24, Daily: 7, Weekly: 4}, settings.Policy, "a flag takes precedence even if it is set to the default")

	settings, err = Find(t.Context(), flagsOf(t, "--backup-store=file:///other"), port)
	require.NoError(t, err)
	assert.False(t, settings.Keys.Trusts(), "the wrapper's keys are not used for a different store")
}

func TestFind_noStore(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	server.Close()
	_, err := Find(t.Context(), flagsOf(t), uint16(server.Listener.Addr().(*net.TCPAddr).Port))
	require.ErrorIs(t, err, ErrNoStore)
	assert.ErrorIs(t, err, status.ErrNoAnswer)
	assert.Regexp(t, "^--backup-store: ", err.Error())
}

func TestMeter(t *testing.T) {
	var shown bytes.Buffer
	now := time.Unix(0, 0)
	meter := &Meter{to: &shown, now: func() time.Time { return now }}
	meter.Show("fetched", 0, 100<<20)
	now = now.Add(redraw / 2)
	meter.Show("fetched", 1<<20, 100<<20)
	now = now.Add(2*time.Second - redraw/2)
	meter.Show("fetched", 20<<20, 100<<20)
	meter.Clear()
	assert.Equal(t, "\r\x1b[Kfetched: 0 bytes of 100.0 MiB\r\x1b[Kfetched: 20.0 MiB of 100.0 MiB, 10.0 MiB/s, 8s left\r\x1b[K", shown.String())
}

func TestMeter_unknownTotal(t *testing.T) {
	var shown bytes.Buffer
	now := time.Unix(0, 0)
	meter := &Meter{to: &shown, now: func() time.Time { return now }}
	meter.Show("uploaded", 0, 0)
	now = now.Add(4 * time.Second)
	meter.Show("uploaded", 2<<30, 0)
	assert.Contains(t, shown.String(), "uploaded: 2.0 GiB, 512.0 MiB/s")
	assert.NotContains(t, shown.String(), "left")
}

func TestMeter_noTerminal(*testing.T) {
	meter := NewMeter(nil)
	meter.Show("fetched", 1, 2)
	meter.Clear()
}
