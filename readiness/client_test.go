package readiness

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// client is one connection, over which requests can be sent one after the other.
type client struct {
	t testing.TB
	net.Conn
	replies *bufio.Reader
}

func dial(t testing.TB, s *Server) *client {
	conn, err := net.Dial("tcp", s.Addr().String())
	require.NoError(t, err)
	return newClient(t, conn)
}

func dialTLS(t testing.TB, s *Server) *client {
	dialer := &net.Dialer{Timeout: patience}
	conn, err := tls.DialWithDialer(dialer, "tcp", s.Addr().String(), &tls.Config{InsecureSkipVerify: true})
	require.NoError(t, err)
	return newClient(t, conn)
}

func newClient(t testing.TB, conn net.Conn) *client {
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	t.Cleanup(func() { _ = conn.Close() })
	return &client{t, conn, bufio.NewReader(conn)}
}

func (c *client) send(method, path string) {
	_, err := fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: pod\r\n\r\n", method, path)
	require.NoError(c.t, err)
}

func (c *client) receive() (*http.Response, string) {
	res, err := http.ReadResponse(c.replies, nil)
	require.NoError(c.t, err)
	body, err := io.ReadAll(res.Body)
	require.NoError(c.t, err)
	return res, string(body)
}

func (c *client) ask(method, path string) (*http.Response, string) {
	c.send(method, path)
	return c.receive()
}
