package readiness

import (
	"bytes"
	"crypto/tls"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/certificates"
)

// files are a certificate and key's place on disk.
type files struct{ cert, key string }

func newFiles(t testing.TB, commonName string) files {
	pair := certificates.NewAuthority(t, "ca").Issue(commonName)
	return files{pair.Cert, pair.Key}
}

// newPair returns what such files hold.
func newPair(t testing.TB, commonName string) (cert, key []byte) {
	f := newFiles(t, commonName)
	cert, err := os.ReadFile(f.cert)
	require.NoError(t, err)
	key, err = os.ReadFile(f.key)
	require.NoError(t, err)
	return cert, key
}

// shown is the name in the certificate that a client is shown.
func shown(t *testing.T, addr string) string {
	t.Helper()
	conn, err := tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true})
	require.NoError(t, err)
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0].Subject.CommonName
}

func TestCertificateIsRenewedFromDisk(t *testing.T) {
	log := new(bytes.Buffer)
	s := served(t, Options{Log: zerolog.New(zerolog.SyncWriter(log))}, found(nil))
	f := newFiles(t, "first")
	require.NoError(t, s.UseTLS(f.cert, f.key))
	addr := s.Addr().String()
	require.Equal(t, "first", shown(t, addr))

	cert, key := newPair(t, "second")
	require.NoError(t, os.WriteFile(f.cert, cert, 0o600)) // the key is still the first one's
	for range 3 {
		require.Equal(t, "first", shown(t, addr))
	}
	require.Equal(t, 1, strings.Count(log.String(), "cannot use the server certificate"), "logged once")

	require.NoError(t, os.WriteFile(f.key, key[:len(key)/2], 0o600))
	require.Equal(t, "first", shown(t, addr))
	require.Equal(t, 2, strings.Count(log.String(), "cannot use the server certificate"), "another failure")

	require.NoError(t, os.WriteFile(f.key, key, 0o600))
	require.Equal(t, "second", shown(t, addr))
	require.Equal(t, 1, strings.Count(log.String(), "was renewed"))

	require.NoError(t, os.Remove(f.cert))
	require.Equal(t, "second", shown(t, addr))
	require.Contains(t, log.String(), "cannot read the server certificate")
}

func TestUseTLSNeedsAGoodPair(t *testing.T) {
	s := served(t, Options{Log: zerolog.Nop()}, found(nil))
	f := newFiles(t, "one")
	missing := filepath.Join(t.TempDir(), "missing.crt")
	require.ErrorContains(t, s.UseTLS(missing, f.key), missing)
	require.ErrorContains(t, s.UseTLS(f.cert, missing), missing)
	_, otherKey := newPair(t, "two")
	require.NoError(t, os.WriteFile(f.key, otherKey, 0o600))
	require.ErrorContains(t, s.UseTLS(f.cert, f.key), f.cert)
	require.Nil(t, s.listener.tls(), "the protocol is unchanged")
}

func TestAPairThatCannotBeUsedIsRefusedByName(t *testing.T) {
	s := served(t, Options{Log: zerolog.Nop()}, found(nil))
	good, other := newFiles(t, "one"), newFiles(t, "two")
	fifo := filepath.Join(t.TempDir(), "fifo")
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	empty := filepath.Join(t.TempDir(), "empty")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	for _, pair := range []files{{good.cert, other.key}, {fifo, fifo}, {empty, good.key}, {good.cert, empty}, {empty + ".absent", good.key}} {
		require.ErrorContains(t, s.UseTLS(pair.cert, pair.key), pair.cert)
	}
	require.NoError(t, s.UseTLS(good.cert, good.key))
}

// Whoever puts a pipe in the place of a certificate must not stop the handshakes.
func TestACertificateThatBlocksLeavesTheLastGoodOneInUse(t *testing.T) {
	log := new(bytes.Buffer)
	s := served(t, Options{Log: zerolog.New(zerolog.SyncWriter(log))}, found(nil))
	f := newFiles(t, "first")
	require.NoError(t, s.UseTLS(f.cert, f.key))
	require.NoError(t, os.Remove(f.cert))
	require.NoError(t, syscall.Mkfifo(f.cert, 0o600))
	dialer := &net.Dialer{Timeout: 10 * time.Second}
	conn, err := tls.DialWithDialer(dialer, "tcp", s.Addr().String(), &tls.Config{InsecureSkipVerify: true})
	require.NoError(t, err)
	defer conn.Close()
	require.Equal(t, "first", conn.ConnectionState().PeerCertificates[0].Subject.CommonName)
	require.Contains(t, log.String(), "it is not a regular file")
}

func TestTLSIsModernAndAsksNoClientCertificate(t *testing.T) {
	s := served(t, Options{Log: zerolog.Nop()}, found(nil))
	f := newFiles(t, "one")
	require.NoError(t, s.UseTLS(f.cert, f.key))

	_, err := tls.Dial("tcp", s.Addr().String(), &tls.Config{
		InsecureSkipVerify: true, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11,
	})
	require.ErrorContains(t, err, "protocol version")

	asked := false
	conn, err := tls.Dial("tcp", s.Addr().String(), &tls.Config{
		InsecureSkipVerify: true,
		NextProtos:         []string{"h2", "http/1.1"},
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			asked = true
			return &tls.Certificate{}, nil
		},
	})
	require.NoError(t, err)
	defer conn.Close()
	require.False(t, asked)
	require.Equal(t, "http/1.1", conn.ConnectionState().NegotiatedProtocol)
}
