package readiness

import (
	"context"
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

// patience bounds every wait of these tests; none of them takes that long.
const patience = 10 * time.Second

// served is a server on a free port of loopback, until the test ends. Its protocol is not chosen yet.
func served(t testing.TB, o Options, m *Monitor) *Server {
	s := listening(t, o, m)
	serve(t, s)
	return s
}

func listening(t testing.TB, o Options, m *Monitor) *Server {
	o.Address = "127.0.0.1:0"
	if o.Phase == nil {
		o.Phase = serving
	}
	s, err := Listen(o, m)
	require.NoError(t, err)
	return s
}

// serve serves until the test ends.
func serve(t testing.TB, s *Server) {
	done := make(chan error, 1)
	go func() { done <- s.Serve() }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = s.Shutdown(ctx) // tests that care have called it
		require.NoError(t, <-done)
	})
}

func TestListenErrorNamesTheAddress(t *testing.T) {
	taken := served(t, Options{Log: zerolog.Nop()}, found(nil)).Addr().String()
	_, err := Listen(Options{Address: taken}, found(nil))
	require.ErrorContains(t, err, taken)
}

func TestUnreadyOverTheWire(t *testing.T) {
	s := served(t, Options{Log: zerolog.Nop(), Phase: starting}, NewMonitor(zerolog.Nop()))
	s.UsePlain()
	res, body := dial(t, s).ask("GET", "/readyz")
	require.Equal(t, 503, res.StatusCode)
	require.Equal(t, "[-]lifecycle failed: StartEtcd for 12s: etcd waits [+]for quorum\n"+
		"[-]quorum, not_learner, no_corrupt_alarm, client_listener, space, data_version, defragmentation, certificates failed: etcd does not run\n"+
		"not ready\n", body)
}

func TestFromPlainToTLSOnTheSamePort(t *testing.T) {
	s := servedAfar(t)
	s.UsePlain()
	old := dial(t, s)
	res, _ := old.ask("GET", "/readyz")
	require.False(t, res.Close, "kept alive")

	f := newFiles(t, "one")
	require.NoError(t, s.UseTLS(f.cert, f.key))
	secure := dialTLS(t, s)
	for range 2 {
		res, body := secure.ask("GET", "/readyz")
		require.Equal(t, "ok\n", body)
		require.False(t, res.Close)
	}

	res, body := old.ask("GET", "/readyz")
	require.Equal(t, "ok\n", body, "answered")
	require.True(t, res.Close, "for the last time")
	_, err := old.replies.ReadByte()
	require.ErrorIs(t, err, io.EOF)

	res, _ = dial(t, s).ask("GET", "/readyz")
	require.Equal(t, 400, res.StatusCode, "no plain HTTP any more")
}

func TestSlowHandshakeDelaysNobodyElse(t *testing.T) {
	s := served(t, Options{Log: zerolog.Nop()}, found(nil))
	f := newFiles(t, "one")
	require.NoError(t, s.UseTLS(f.cert, f.key))
	for range 20 {
		_, err := dial(t, s).Write([]byte{0x16, 3, 1}) // the start of a handshake, and no more
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
			s := served(t, Options{Log: zerolog.Nop(), Stop: stop}, found(nil))
			var c *client
			if secure {
				f := newFiles(t, "one")
				require.NoError(t, s.UseTLS(f.cert, f.key))
				c = dialTLS(t, s)
			} else {
				s.UsePlain()
				c = dial(t, s)
			}

			res, body := c.ask("POST", "/stop")
			require.Equal(t, 200, res.StatusCode)
			require.Equal(t, int64(9), res.ContentLength)
			require.Equal(t, "stopping\n", body)
			<-asked

			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			require.ErrorIs(t, s.Shutdown(ctx), context.DeadlineExceeded, "Stop still runs")
			close(release)
			require.Empty(t, asked, "once")
		})
	}
}

func TestStopWithABodyNobodyReads(t *testing.T) {
	for _, size := range []int{10, 1 << 20} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			asked := make(chan struct{}, 2)
			s := served(t, Options{Log: zerolog.Nop(), Stop: func() { asked <- struct{}{} }}, found(nil))
			s.UsePlain()
			c := dial(t, s)
			go func() { // ends with the connection
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

func TestHugeHeaderIsRefused(t *testing.T) {
	s := served(t, Options{Log: zerolog.Nop()}, found(nil))
	s.UsePlain()
	c := dial(t, s)
	_, _ = fmt.Fprintf(c, "GET /readyz HTTP/1.1\r\nHost: pod\r\nX: %s\r\n\r\n", strings.Repeat("x", 12<<10+8<<10))
	res, _ := c.receive()
	require.Equal(t, 431, res.StatusCode)
}

func TestShutdownFreesThePort(t *testing.T) {
	for name, choose := range map[string]func(*Server){"plain": (*Server).UsePlain, "TLS": func(s *Server) { require.NoError(t, s.UseTemporary()) }} {
		t.Run(name, func(t *testing.T) {
			s, err := Listen(Options{Address: "127.0.0.1:0", Phase: serving, Log: zerolog.Nop()}, found(nil))
			require.NoError(t, err)
			choose(s)
			done := make(chan error, 1)
			go func() { done <- s.Serve() }()
			require.NoError(t, s.Shutdown(t.Context()))
			require.NoError(t, <-done)
			again, err := Listen(Options{Address: s.Addr().String()}, found(nil))
			require.NoError(t, err)
			require.NoError(t, again.Shutdown(t.Context()), "never served")
			_, err = net.Dial("tcp", s.Addr().String())
			require.ErrorIs(t, err, syscall.ECONNREFUSED)
			require.NoError(t, again.Serve(), "too late")
		})
	}
}

func TestServeSaysWhyItEnded(t *testing.T) {
	s, err := Listen(Options{Address: "127.0.0.1:0", Phase: serving, Log: zerolog.Nop()}, found(nil))
	require.NoError(t, err)
	s.UsePlain()
	require.NoError(t, s.gate.Listener.Close()) // from below
	require.ErrorContains(t, s.Serve(), s.Addr().String())
}

func TestShutdownEndsStreams(t *testing.T) {
	streaming := make(chan struct{})
	stream := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(streaming)
		<-r.Context().Done()
	})
	s := served(t, Options{Log: zerolog.Nop(), Routes: map[string]http.Handler{"GET /stream": stream}}, found(nil))
	s.UsePlain()
	dial(t, s).send("GET", "/stream")
	<-streaming
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, s.Shutdown(ctx))
}
