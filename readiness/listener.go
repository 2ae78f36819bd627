package readiness

import (
	"bufio"
	"crypto/tls"
	stdlog "log"
	"net"
	"sync/atomic"
)

// A dualListener wraps a bound listener. Each connection speaks the protocol that is in force when it is accepted, at
// first plain HTTP. Clients on loopback may always speak plain HTTP on the same port, so that `etcd-wrapper status`,
// kubectl port-forward and a person in the pod need no certificates.
type dualListener struct {
	net.Listener
	config atomic.Pointer[tls.Config] // plainHTTP, or nil, for plain HTTP
	errors *stdlog.Logger
}

var plainHTTP = new(tls.Config)

// tls returns the configuration of new connections, or nil for plain HTTP.
func (l *dualListener) tls() *tls.Config {
	if config := l.config.Load(); config != plainHTTP {
		return config
	}
	return nil
}

// Accept implements net.Listener. It does no handshake: the connection's own goroutine does, so a slow client delays
// only itself.
func (l *dualListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	config := l.tls()
	switch {
	case err != nil || config == nil:
		return conn, err
	case onLoopback(conn.RemoteAddr().String()):
		plain := bufferedConn{conn, bufio.NewReader(conn)}
		return &localConn{Conn: tls.Server(plain, config), plain: plain, errors: l.errors}, nil
	default:
		return tls.Server(conn, config), nil
	}
}

// A localConn is a connection that speaks the protocol of its first byte. Before that byte it only reads and closes.
// net/http bounds the handshake like the header that follows it.
type localConn struct {
	*tls.Conn // over plain
	plain     bufferedConn
	errors    *stdlog.Logger

	started, isPlain bool // written by the first Read, which net/http waits for before all other reads and writes
}

// recordTypeHandshake is the first byte of a TLS connection (RFC 8446, 5.1).
const recordTypeHandshake = 22

// Read implements net.Conn.
func (c *localConn) Read(into []byte) (int, error) {
	if !c.started {
		first, err := c.plain.reader.Peek(1)
		if err != nil {
			return 0, err
		}
		c.started, c.isPlain = true, first[0] != recordTypeHandshake
		if !c.isPlain {
			if err := c.Handshake(); err != nil {
				c.errors.Printf("TLS handshake error from %s: %v", c.RemoteAddr(), err)
			}
		}
	}
	if c.isPlain {
		return c.plain.Read(into)
	}
	return c.Conn.Read(into)
}

// Write implements net.Conn.
func (c *localConn) Write(from []byte) (int, error) {
	if c.isPlain {
		return c.plain.Write(from)
	}
	return c.Conn.Write(from)
}

// A bufferedConn is a connection whose next bytes can be peeked at.
type bufferedConn struct {
	net.Conn
	reader *bufio.Reader
}

// Read implements net.Conn.
func (c bufferedConn) Read(into []byte) (int, error) { return c.reader.Read(into) }
