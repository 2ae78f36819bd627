package readiness

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

// afar is a listener whose clients seem to be on another host.
type afar struct{ net.Listener }

type strangersConn struct{ net.Conn }

func (a afar) Accept() (net.Conn, error) {
	conn, err := a.Listener.Accept()
	return strangersConn{conn}, err
}

func (strangersConn) RemoteAddr() net.Addr {
	return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1024}
}

func servedAfar(t *testing.T) *Server {
	s := listening(t, Options{Log: zerolog.Nop()}, found(nil))
	s.listener.Listener = afar{s.listener.Listener}
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

func TestStrangersMustSpeakTLSWhereItIsServed(t *testing.T) {
	s := servedAfar(t)
	require.NoError(t, s.UseTemporary())
	res, _ := dial(t, s).ask("GET", "/readyz")
	require.Equal(t, 400, res.StatusCode)
	_, body := dialTLS(t, s).ask("GET", "/readyz")
	require.Equal(t, "ok\n", body)
}

func TestTheTemporaryCertificateIsReplacedByTheRealOneOrByNone(t *testing.T) {
	s := servedAfar(t)
	require.NoError(t, s.UseTemporary())
	require.Equal(t, temporaryName, shown(t, s.Addr().String()))
	f := newFiles(t, "etcd")
	require.NoError(t, s.UseTLS(f.cert, f.key))
	require.Equal(t, "etcd", shown(t, s.Addr().String()))
	s.UsePlain()
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

// Clients that connect and say nothing neither delay others nor the end.
func TestLocalClientsThatSayNothingDelayNobody(t *testing.T) {
	s := served(t, Options{Log: zerolog.Nop()}, found(nil))
	require.NoError(t, s.UseTemporary())
	var silent []*client
	for range 20 {
		silent = append(silent, dial(t, s))
	}
	_, body := dial(t, s).ask("GET", "/readyz")
	require.Equal(t, "ok\n", body)

	began := time.Now()
	require.NoError(t, s.Shutdown(t.Context()))
	require.Less(t, time.Since(began), headerTimeout)
	for _, c := range silent {
		_, err := c.Read(make([]byte, 1))
		require.Error(t, err)
	}
}

func TestWhatWasReadAheadIsNotLost(t *testing.T) {
	near, far := net.Pipe()
	go func() { _, _ = io.WriteString(far, "GET /"); far.Close() }()
	begun, err := begin(near)
	require.NoError(t, err)
	require.False(t, begun.speaksTLS())
	var text strings.Builder
	_, err = io.Copy(&text, begun)
	require.NoError(t, err)
	require.Equal(t, "GET /", text.String())
}

func TestAClosedListenerEndsTheWait(t *testing.T) {
	bound, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	l := newListener(bound)
	done := make(chan error)
	go func() { _, err := l.Accept(); done <- err }()
	require.NoError(t, l.Close())
	require.ErrorIs(t, <-done, net.ErrClosed)
	require.NoError(t, l.Close(), "twice")
}
