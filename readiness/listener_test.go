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

// A remoteListener makes clients appear to be on another host.
type remoteListener struct{ net.Listener }

type remoteConn struct{ net.Conn }

func (a remoteListener) Accept() (net.Conn, error) {
	conn, err := a.Listener.Accept()
	return remoteConn{conn}, err
}

func (remoteConn) RemoteAddr() net.Addr {
	return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1024}
}

// servedRemotely is like served, but all clients appear to be on another host.
func servedRemotely(t *testing.T) *Server {
	s := listening(t, Options{Log: zerolog.Nop()}, monitorWith(nil))
	s.listener.Listener = remoteListener{s.listener.Listener}
	serve(t, s)
	return s
}

func TestLocalClientsMayUseEitherProtocol(t *testing.T) {
	s := served(t, Options{Log: zerolog.Nop()}, monitorWith(nil))
	require.NoError(t, s.UseTemporary())
	plain := dial(t, s)
	for _, c := range []*client{plain, dialTLS(t, s), plain} {
		res, body := c.ask("GET", "/readyz")
		require.Equal(t, "ok\n", body)
		require.False(t, res.Close, "the connection is kept alive")
	}
}

func TestRemoteClientsMustUseTLS(t *testing.T) {
	s := servedRemotely(t)
	require.NoError(t, s.UseTemporary())
	res, _ := dial(t, s).ask("GET", "/readyz")
	require.Equal(t, 400, res.StatusCode)
	_, body := dialTLS(t, s).ask("GET", "/readyz")
	require.Equal(t, "ok\n", body)
}

func TestTemporaryCertificateIsReplaced(t *testing.T) {
	s := servedRemotely(t)
	require.NoError(t, s.UseTemporary())
	require.Equal(t, temporaryName, commonName(t, s.Addr().String()))
	f := newFiles(t, "etcd")
	require.NoError(t, s.UseTLS(f.cert, f.key))
	require.Equal(t, "etcd", commonName(t, s.Addr().String()))
	s.UseHTTP()
	_, body := dial(t, s).ask("GET", "/readyz")
	require.Equal(t, "ok\n", body)
}

func TestTwoServersHaveDifferentTemporaryKeys(t *testing.T) {
	one, err := temporaryConfig()
	require.NoError(t, err)
	other, err := temporaryConfig()
	require.NoError(t, err)
	require.NotEqual(t, one.Certificates[0].Certificate[0], other.Certificates[0].Certificate[0])
}

func TestSilentLocalClientsDelayNoOthers(t *testing.T) {
	s := served(t, Options{Log: zerolog.Nop()}, monitorWith(nil))
	require.NoError(t, s.UseTemporary())
	for range 20 {
		dial(t, s)
	}
	_, body := dial(t, s).ask("GET", "/readyz")
	require.Equal(t, "ok\n", body)
}

func TestFailedHandshakesOfLocalClientsAreLogged(t *testing.T) {
	log := new(bytes.Buffer)
	s := served(t, Options{Log: zerolog.New(zerolog.SyncWriter(log))}, monitorWith(nil))
	require.NoError(t, s.UseTemporary())
	_, err := tls.Dial("tcp", s.Addr().String(), &tls.Config{MinVersion: tls.VersionTLS12})
	require.ErrorContains(t, err, "certificate")
	require.NoError(t, s.Shutdown(t.Context()))
	require.Contains(t, log.String(), "TLS handshake error from 127.0.0.1")
}

// files contains the paths of a certificate and its key file.
type files struct{ cert, key string }

func newFiles(t testing.TB, name string) files {
	pair := certificates.NewAuthority(t, "ca").Issue(name)
	return files{pair.Cert, pair.Key}
}

// newPair returns a new certificate and its key in PEM.
func newPair(t testing.TB, name string) (cert, key []byte) {
	f := newFiles(t, name)
	cert, err := os.ReadFile(f.cert)
	require.NoError(t, err)
	key, err = os.ReadFile(f.key)
	require.NoError(t, err)
	return cert, key
}

// commonName returns the common name of the certificate that the server presents.
func commonName(t *testing.T, addr string) string {
	t.Helper()
	conn, err := tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true})
	require.NoError(t, err)
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0].Subject.CommonName
}

func TestCertificateIsRenewedFromDisk(t *testing.T) {
	log := new(bytes.Buffer)
	s := served(t, Options{Log: zerolog.New(zerolog.SyncWriter(log))}, monitorWith(nil))
	f := newFiles(t, "first")
	require.NoError(t, s.UseTLS(f.cert, f.key))
	addr := s.Addr().String()
	require.Equal(t, "first", commonName(t, addr))

	cert, key := newPair(t, "second")
	require.NoError(t, os.WriteFile(f.cert, cert, 0o600)) // the pair does not match until the key is replaced, too
	for range 3 {
		require.Equal(t, "first", commonName(t, addr))
	}
	require.Equal(t, 1, strings.Count(log.String(), "cannot use the server certificate"), "the same failure is logged once")

	require.NoError(t, os.WriteFile(f.key, key[:len(key)/2], 0o600))
	require.Equal(t, "first", commonName(t, addr))
	require.Equal(t, 2, strings.Count(log.String(), "cannot use the server certificate"), "a different failure is logged")

	require.NoError(t, os.WriteFile(f.key, key, 0o600))
	require.Equal(t, "second", commonName(t, addr))
	require.Equal(t, 1, strings.Count(log.String(), "reloaded the server certificate"))

	require.NoError(t, os.Remove(f.cert))
	require.Equal(t, "second", commonName(t, addr))
	require.Contains(t, log.String(), "cannot read the server certificate")
}

func TestUnusablePairIsRejectedByName(t *testing.T) {
	s := served(t, Options{Log: zerolog.Nop()}, monitorWith(nil))
	good, other := newFiles(t, "one"), newFiles(t, "two")
	fifo := filepath.Join(t.TempDir(), "fifo")
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	empty := filepath.Join(t.TempDir(), "empty")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	for _, pair := range []files{{good.cert, other.key}, {fifo, fifo}, {empty, good.key}, {good.cert, empty}, {empty + ".absent", good.key}} {
		require.ErrorContains(t, s.UseTLS(pair.cert, pair.key), pair.cert)
		require.Nil(t, s.listener.tls(), "the protocol is unchanged")
	}
	missing := filepath.Join(t.TempDir(), "missing.key")
	require.ErrorContains(t, s.UseTLS(good.cert, missing), missing)
	require.NoError(t, s.UseTLS(good.cert, good.key))
}

// Handshakes must not block if a certificate file is replaced with a pipe, which blocks readers.
func TestBlockingCertificateFileKeepsLastValidPair(t *testing.T) {
	log := new(bytes.Buffer)
	s := served(t, Options{Log: zerolog.New(zerolog.SyncWriter(log))}, monitorWith(nil))
	f := newFiles(t, "first")
	require.NoError(t, s.UseTLS(f.cert, f.key))
	require.NoError(t, os.Remove(f.cert))
	require.NoError(t, syscall.Mkfifo(f.cert, 0o600))
	dialer := &net.Dialer{Timeout: 10 * time.Second}
	conn, err := tls.DialWithDialer(dialer, "tcp", s.Addr().String(), &tls.Config{InsecureSkipVerify: true})
	require.NoError(t, err)
	defer conn.Close()
	require.Equal(t, "first", conn.ConnectionState().PeerCertificates[0].Subject.CommonName)
	require.Contains(t, log.String(), "not a regular file")
}

func TestTLSIsModernAndRequestsNoClientCertificate(t *testing.T) {
	s := served(t, Options{Log: zerolog.Nop()}, monitorWith(nil))
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
