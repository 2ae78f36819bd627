package main

import (
	"bytes"
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
	"go.etcd.io/etcd/server/v3/embed"
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

func TestCertificatesThatEndAreNamedOnce(t *testing.T) {
	var log bytes.Buffer
	past, soon, late := time.Now().Add(-time.Hour), time.Now().Add(time.Hour), time.Now().Add(10*expiresSoon)
	bundle, _ := certificateFile(t, late, soon)
	expired, _ := certificateFile(t, past)
	valid, _ := certificateFile(t, late)
	flags := &startCommand{SidecarCAPath: bundle, EtcdCertPath: "/nowhere"}
	watched := newCertificates(flags, newLog(&log, 0))
	config := embed.NewConfig()
	config.ClientTLSInfo.CertFile, config.PeerTLSInfo.CertFile = expired, valid
	watched.add(config)
	watched.add(config) // reads them again

	told := watched.now()
	require.Len(t, told, 3)
	assert.Equal(t, "etcd_peer", told[0].Name)
	assert.Equal(t, "etcd_server", told[1].Name)
	assert.Equal(t, past.Unix(), told[1].Expires.Unix())
	assert.Equal(t, soon.Unix(), told[2].Expires.Unix(), "the first of a bundle")
	assert.Equal(t, 1, strings.Count(log.String(), "has expired"), log.String())
	assert.Equal(t, 1, strings.Count(log.String(), "expires soon"), log.String())
}
