package readiness

import (
	"bytes"
	"crypto/tls"
	"net"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

// remoteListener makes its clients look as if they were on another host.
type remoteListener struct{ net.Listener }

type remoteConn struct{ net.Conn }

func (a remoteListener) Accept() (net.Conn, error) {
	conn, err := a.Listener.Accept()
	return remoteConn{conn}, err
}

func (remoteConn) RemoteAddr() net.Addr {
	return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1024}
}

func servedRemotely(t *testing.T) *Server {
	s := listening(t, Options{Log: zerolog.Nop()}, found(nil))
	s.listener.Listener = remoteListener{s.listener.Listener}
	serve(t, s)
	return s
}

func TestLocalClientsMaySpeakEitherProtocolOnTheSamePort(t *testing.T) {
	s := served(t, Options{Log: zerolog.Nop()}, found(nil))
	require.NoError(t, s.UseTemporary())
	plain := dial(t, s)
	for _, c := range []*client{plain, dialTLS(t, s), plain} {
		res, body := c.ask("GET", "/readyz")
		require.Equal(t, "ok\n", body)
		require.False(t, res.Close, "kept alive")
	}
}

func TestRemoteClientsMustSpeakTLSWhereItIsServed(t *testing.T) {
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
	s := served(t, Options{Log: zerolog.Nop()}, found(nil))
	require.NoError(t, s.UseTemporary())
	for range 20 {
		dial(t, s)
	}
	_, body := dial(t, s).ask("GET", "/readyz")
	require.Equal(t, "ok\n", body)
}

func TestFailedHandshakesOfLocalClientsAreLogged(t *testing.T) {
	log := new(bytes.Buffer)
	s := served(t, Options{Log: zerolog.New(zerolog.SyncWriter(log))}, found(nil))
	require.NoError(t, s.UseTemporary())
	_, err := tls.Dial("tcp", s.Addr().String(), &tls.Config{MinVersion: tls.VersionTLS12})
	require.ErrorContains(t, err, "certificate")
	require.NoError(t, s.Shutdown(t.Context()))
	require.Contains(t, log.String(), "TLS handshake error from 127.0.0.1")
}
