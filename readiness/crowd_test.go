package readiness

import (
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

// A stranger who opens connections and says nothing must neither fill the memory nor keep the kubelet out.
func TestIdleConnectionsAreBoundedAndNewOnesAreServed(t *testing.T) {
	s := served(t, Options{Log: zerolog.Nop(), Phase: serving}, found(nil))
	s.UsePlain()
	var strangers []net.Conn
	for range maxConnections + 10 {
		conn, err := net.Dial("tcp", s.Addr().String())
		require.NoError(t, err)
		defer conn.Close()
		strangers = append(strangers, conn)
	}
	c := dial(t, s)
	require.NoError(t, c.SetDeadline(time.Now().Add(10*time.Second)))
	_, err := io.WriteString(c, "GET /livez HTTP/1.1\r\nHost: pod\r\n\r\n")
	require.NoError(t, err)
	reply, _ := c.receive()
	require.Equal(t, http.StatusOK, reply.StatusCode)
	for i, conn := range strangers[:11] {
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(4*time.Second)), "sooner than the time for a header runs out")
		_, err := conn.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF, "stranger %d, among those that have waited longest", i)
	}
}

func TestWhoeverHasARequestUnderWayStays(t *testing.T) {
	c := newCrowd(2)
	busy, idle, late, later := pipe(t), pipe(t), pipe(t), pipe(t)
	c.change(busy, http.StateNew)
	c.change(busy, http.StateActive)
	c.change(idle, http.StateNew)
	c.change(late, http.StateNew)
	require.True(t, closed(idle), "it has waited longest")
	require.False(t, closed(busy))
	require.False(t, closed(late))

	c.change(idle, http.StateClosed)
	c.change(late, http.StateActive)
	c.change(later, http.StateNew)
	require.True(t, closed(later), "all others are busy")

	c.change(busy, http.StateIdle)
	c.change(late, http.StateClosed)
	require.Len(t, c.all, 1)
	require.Equal(t, 1, c.waiting.Len())
	c.change(busy, http.StateClosed)
	require.Empty(t, c.all)
	require.Zero(t, c.waiting.Len())
}

// watchedConn knows whether it was closed.
type watchedConn struct {
	net.Conn
	gone bool
}

func (w *watchedConn) Close() error {
	w.gone = true
	return w.Conn.Close()
}

func pipe(t *testing.T) *watchedConn {
	near, far := net.Pipe()
	t.Cleanup(func() { near.Close(); far.Close() })
	return &watchedConn{Conn: near}
}

func closed(conn net.Conn) bool { return conn.(*watchedConn).gone }
