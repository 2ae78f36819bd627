package readiness

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

// waitTimeout is the timeout for each wait in these tests.
const waitTimeout = 10 * time.Second

// served starts a server on a free loopback port and stops it when the test ends. The caller must choose the
// protocol.
func served(t testing.TB, o Options, m *Monitor) *Server {
	s := listening(t, o, m)
	serve(t, s)
	return s
}

// listening returns a server that does not accept connections yet.
func listening(t testing.TB, o Options, m *Monitor) *Server {
	o.Address = "127.0.0.1:0"
	if o.Phase == nil {
		o.Phase = serving
	}
	s, err := Listen(o, m)
	require.NoError(t, err)
	return s
}

// serve runs the server until the test ends.
func serve(t testing.TB, s *Server) {
	done := make(chan error, 1)
	go func() { done <- s.Serve() }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = s.Shutdown(ctx) // some tests have already called Shutdown
		require.NoError(t, <-done)
	})
}

func TestErrorOfListenNamesTheAddress(t *testing.T) {
	taken := served(t, Options{Log: zerolog.Nop()}, monitorWith(nil)).Addr().String()
	_, err := Listen(Options{Address: taken}, monitorWith(nil))
	require.ErrorContains(t, err, taken)
}

func TestNotReadyOverHTTP(t *testing.T) {
	s := served(t, Options{Log: zerolog.Nop(), Phase: starting}, NewMonitor(zerolog.Nop()))
	s.UseHTTP()
	res, body := dial(t, s).ask("GET", "/readyz")
	require.Equal(t, 503, res.StatusCode)
	require.Equal(t, "[-]lifecycle failed: StartEtcd for 12s: etcd is waiting [+]for quorum\n"+
		"[-]quorum, not_learner, no_corrupt_alarm, client_listener, space, volume, data_version, defragmentation, certificates failed: etcd is not running\n"+
		"not ready\n", body)
}

func TestSwitchFromHTTPToTLS(t *testing.T) {
	s := servedRemotely(t)
	s.UseHTTP()
	old := dial(t, s)
	res, _ := old.ask("GET", "/readyz")
	require.False(t, res.Close, "the connection is kept alive")

	f := newFiles(t, "one")
	require.NoError(t, s.UseTLS(f.cert, f.key))
	secure := dialTLS(t, s)
	for range 2 {
		res, body := secure.ask("GET", "/readyz")
		require.Equal(t, "ok\n", body)
		require.False(t, res.Close)
	}

	res, body := old.ask("GET", "/readyz")
	require.Equal(t, "ok\n", body, "an open HTTP connection gets one more reply")
	require.True(t, res.Close, "the connection is closed after that reply")
	_, err := old.replies.ReadByte()
	require.ErrorIs(t, err, io.EOF)

	res, _ = dial(t, s).ask("GET", "/readyz")
	require.Equal(t, 400, res.StatusCode, "new connections must use TLS")
}

func TestSlowHandshakeDelaysNoOtherClient(t *testing.T) {
	s := served(t, Options{Log: zerolog.Nop()}, monitorWith(nil))
	f := newFiles(t, "one")
	require.NoError(t, s.UseTLS(f.cert, f.key))
	for range 20 {
		_, err := dial(t, s).Write([]byte{0x16, 3, 1}) // an incomplete handshake
		require.NoError(t, err)
	}
	start := time.Now()
	_, body := dialTLS(t, s).ask("GET", "/readyz")
	require.Equal(t, "ok\n", body)
	require.Less(t, time.Since(start), headerTimeout)
}

func TestReplyIsCompleteBeforeStop(t *testing.T) {
	for _, secure := range []bool{false, true} {
		t.Run(fmt.Sprintf("TLS %v", secure), func(t *testing.T) {
			asked, release := make(chan struct{}, 2), make(chan struct{})
			stop := func() { asked <- struct{}{}; <-release }
			s := served(t, Options{Log: zerolog.Nop(), Stop: stop}, monitorWith(nil))
			var c *client
			if secure {
				f := newFiles(t, "one")
				require.NoError(t, s.UseTLS(f.cert, f.key))
				c = dialTLS(t, s)
			} else {
				s.UseHTTP()
				c = dial(t, s)
			}

			res, body := c.ask("POST", "/stop")
			require.Equal(t, 200, res.StatusCode)
			require.Equal(t, int64(9), res.ContentLength)
			require.Equal(t, "stopping\n", body)
			<-asked

			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			require.ErrorIs(t, s.Shutdown(ctx), context.DeadlineExceeded, "Stop has not returned")
			close(release)
			require.Empty(t, asked, "Stop is called once")
		})
	}
}

func TestStopWithUnreadBody(t *testing.T) {
	for _, size := range []int{10, 1 << 20} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			asked := make(chan struct{}, 2)
			s := served(t, Options{Log: zerolog.Nop(), Stop: func() { asked <- struct{}{} }}, monitorWith(nil))
			s.UseHTTP()
			c := dial(t, s)
			go func() { // returns once the server has closed the connection
				_, _ = fmt.Fprintf(c, "POST /stop HTTP/1.1\r\nHost: pod\r\nContent-Length: %d\r\n\r\n%s", size, strings.Repeat("x", size))
			}()
			res, body := c.receive()
			require.Equal(t, 200, res.StatusCode)
			require.Equal(t, "stopping\n", body)
			require.Equal(t, size > 256<<10, res.Close)
			<-asked
		})
	}
}

func TestHugeHeaderIsRejected(t *testing.T) {
	s := served(t, Options{Log: zerolog.Nop()}, monitorWith(nil))
	s.UseHTTP()
	c := dial(t, s)
	_, _ = fmt.Fprintf(c, "GET /readyz HTTP/1.1\r\nHost: pod\r\nX: %s\r\n\r\n", strings.Repeat("x", 12<<10+8<<10))
	res, _ := c.receive()
	require.Equal(t, 431, res.StatusCode)
}

func TestShutdownFreesThePort(t *testing.T) {
	for name, choose := range map[string]func(*Server){"plain": (*Server).UseHTTP, "TLS": func(s *Server) { require.NoError(t, s.UseTemporary()) }} {
		t.Run(name, func(t *testing.T) {
			s, err := Listen(Options{Address: "127.0.0.1:0", Phase: serving, Log: zerolog.Nop()}, monitorWith(nil))
			require.NoError(t, err)
			choose(s)
			done := make(chan error, 1)
			go func() { done <- s.Serve() }()
			require.NoError(t, s.Shutdown(t.Context()))
			require.NoError(t, <-done)
			again, err := Listen(Options{Address: s.Addr().String()}, monitorWith(nil))
			require.NoError(t, err)
			require.NoError(t, again.Shutdown(t.Context()), "a server that has never served")
			_, err = net.Dial("tcp", s.Addr().String())
			require.ErrorIs(t, err, syscall.ECONNREFUSED)
			require.NoError(t, again.Serve(), "Serve after Shutdown")
		})
	}
}

func TestServeReturnsWhyItEnded(t *testing.T) {
	s, err := Listen(Options{Address: "127.0.0.1:0", Phase: serving, Log: zerolog.Nop()}, monitorWith(nil))
	require.NoError(t, err)
	s.UseHTTP()
	require.NoError(t, s.listener.Close())
	require.ErrorContains(t, s.Serve(), s.Addr().String())
}

func TestShutdownEndsStreams(t *testing.T) {
	streaming := make(chan struct{})
	stream := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(streaming)
		<-r.Context().Done()
	})
	s := served(t, Options{Log: zerolog.Nop(), Routes: map[string]http.Handler{"GET /stream": stream}}, monitorWith(nil))
	s.UseHTTP()
	dial(t, s).send("GET", "/stream")
	<-streaming
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	require.NoError(t, s.Shutdown(ctx))
}

// Clients that send nothing must neither exhaust the memory nor lock out the kubelet.
func TestIdleConnectionsAreBoundedAndNewOnesAreServed(t *testing.T) {
	s := served(t, Options{Log: zerolog.Nop(), Phase: serving}, monitorWith(nil))
	s.UseHTTP()
	var silent []net.Conn
	for range maxConnections + 10 {
		conn, err := net.Dial("tcp", s.Addr().String())
		require.NoError(t, err)
		defer conn.Close()
		silent = append(silent, conn)
	}
	c := dial(t, s)
	require.NoError(t, c.SetDeadline(time.Now().Add(10*time.Second)))
	_, err := io.WriteString(c, "GET /livez HTTP/1.1\r\nHost: pod\r\n\r\n")
	require.NoError(t, err)
	reply, _ := c.receive()
	require.Equal(t, http.StatusOK, reply.StatusCode)
	for i, conn := range silent[:11] {
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(4*time.Second)), "before headerTimeout")
		_, err := conn.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF, "connection %d, one of those that have been idle longest", i)
	}
}

func TestConnectionLimiterClosesLongestIdle(t *testing.T) {
	c := newConnectionLimiter(2)
	busy, idle, late, later := pipe(t), pipe(t), pipe(t), pipe(t)
	c.change(busy, http.StateNew)
	c.change(busy, http.StateActive)
	c.change(idle, http.StateNew)
	c.change(late, http.StateNew)
	require.True(t, closed(idle), "this connection has been idle longest")
	require.False(t, closed(busy))
	require.False(t, closed(late))

	c.change(idle, http.StateClosed)
	c.change(late, http.StateActive)
	c.change(later, http.StateNew)
	require.True(t, closed(later), "all other connections have a request in progress")

	c.change(busy, http.StateIdle)
	c.change(late, http.StateClosed)
	require.Len(t, c.all, 1)
	require.Equal(t, 1, c.waiting.Len())
	c.change(busy, http.StateClosed)
	require.Empty(t, c.all)
	require.Zero(t, c.waiting.Len())
}

// A watchedConn records whether it has been closed.
type watchedConn struct {
	net.Conn
	closed bool
}

func (w *watchedConn) Close() error {
	w.closed = true
	return w.Conn.Close()
}

// pipe returns a connection to a client that sends nothing.
func pipe(t *testing.T) *watchedConn {
	near, far := net.Pipe()
	t.Cleanup(func() { near.Close(); far.Close() })
	return &watchedConn{Conn: near}
}

func closed(conn net.Conn) bool { return conn.(*watchedConn).closed }

// A client is a connection that sends one request at a time.
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
	dialer := &net.Dialer{Timeout: waitTimeout}
	conn, err := tls.DialWithDialer(dialer, "tcp", s.Addr().String(), &tls.Config{InsecureSkipVerify: true})
	require.NoError(t, err)
	return newClient(t, conn)
}

func newClient(t testing.TB, conn net.Conn) *client {
	require.NoError(t, conn.SetDeadline(time.Now().Add(waitTimeout)))
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
