package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	stdlog "log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// certificateFile writes self-signed certificates for this host that end at the given times, and returns the path and
// the last of them with its key.
func certificateFile(t *testing.T, ends ...time.Time) (path string, last tls.Certificate) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	var content []byte
	for _, end := range ends {
		template := &x509.Certificate{
			SerialNumber: big.NewInt(1), NotAfter: end, IsCA: true, BasicConstraintsValid: true,
			IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		}
		der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
		require.NoError(t, err)
		content = append(content, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
		last = tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	}
	path = filepath.Join(t.TempDir(), "tls.crt")
	require.NoError(t, os.WriteFile(path, content, 0o600))
	return path, last
}

func TestASidecarWhoseCertificateHasExpiredIsNamed(t *testing.T) {
	path, pair := certificateFile(t, time.Now().Add(-time.Hour))
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	server.Config.ErrorLog = stdlog.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	wrapper := start(t, "--backup-restore-tls-enabled", "--backup-restore-ca-cert-bundle-path", path,
		"--backup-restore-host-port", server.Listener.Addr().String())
	require.Eventually(t, func() bool {
		return strings.Contains(read(t, wrapper.logFile()), "certificate has expired or is not yet valid")
	}, patience, 20*time.Millisecond)
	require.Zero(t, wrapper.stop())
	message := read(t, wrapper.terminationMessage())
	assert.Contains(t, message, "last trouble: certificate, ")
	assert.Contains(t, message, "certificate has expired")
}
