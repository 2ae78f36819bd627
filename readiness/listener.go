package readiness

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// A dualListener wraps a bound listener. Each connection speaks the protocol that is in force when it is accepted, at
// first plain HTTP. Clients on loopback may always speak plain HTTP on the same port, so that `etcd-wrapper status`,
// kubectl port-forward and a person in the pod need no certificates.
type dualListener struct {
	net.Listener
	protocol atomic.Pointer[protocol]
	accepted chan accepted
	sorts    bool // from now on acceptAll accepts, not Accept; plain HTTP alone needs no such goroutine

	lifetime  context.Context //nolint:containedctx // it ends the first reads of connections
	end       context.CancelFunc
	accepting sync.Once
	closing   sync.Once
	running   sync.WaitGroup // acceptAll, and the reads of first bytes
}

// protocol is the protocol of new connections: plain HTTP if tls is nil.
type protocol struct{ tls *tls.Config }

type accepted struct {
	conn net.Conn
	err  error
}

func newListener(bound net.Listener) *dualListener {
	l := &dualListener{Listener: bound, accepted: make(chan accepted)}
	l.lifetime, l.end = context.WithCancel(context.Background())
	return l
}

// use sets the protocol and reports whether that switches between plain HTTP and TLS, or is the first call.
func (l *dualListener) use(p *protocol) (changed bool) {
	before := l.protocol.Swap(p)
	return before == nil || (before.tls != nil) != (p.tls != nil)
}

func (l *dualListener) usesTLS() bool { return l.tls() != nil }

func (l *dualListener) tls() *tls.Config {
	if p := l.protocol.Load(); p != nil {
		return p.tls
	}
	return nil
}

// Accept implements net.Listener. It does no handshake: the connection's own goroutine does, so a slow client delays
// only itself. One goroutine at a time calls Accept.
func (l *dualListener) Accept() (net.Conn, error) {
	var first net.Conn
	if !l.sorts && !l.usesTLS() {
		conn, err := l.Listener.Accept()
		config := l.tls()
		if err != nil || config == nil {
			return conn, err
		}
		first = conn // TLS came into force while Accept was waiting
	}
	l.sorts = true
	l.accepting.Do(func() { l.running.Go(func() { l.acceptAll(first) }) })
	select {
	case next := <-l.accepted:
		return next.conn, next.err
	case <-l.lifetime.Done():
		return nil, net.ErrClosed
	}
}

// acceptAll accepts connections until the listener is closed; it handles first before them unless it is nil. It
// delivers each error to one call of Accept, whose caller decides what it means.
func (l *dualListener) acceptAll(first net.Conn) {
	if first != nil {
		l.sort(first, l.tls())
	}
	for l.lifetime.Err() == nil {
		conn, err := l.Listener.Accept()
		if err != nil {
			l.hand(accepted{err: err})
			continue
		}
		l.sort(conn, l.tls())
	}
}

func (l *dualListener) sort(conn net.Conn, config *tls.Config) {
	switch {
	case config == nil:
		l.hand(accepted{conn: conn})
	case onLoopback(conn.RemoteAddr().String()):
		l.running.Go(func() { l.handLocal(conn, config) })
	default:
		l.hand(accepted{conn: tls.Server(conn, config)})
	}
}

// handLocal reads the first byte of a local client, which shows its protocol.
func (l *dualListener) handLocal(conn net.Conn, config *tls.Config) {
	release := context.AfterFunc(l.lifetime, func() { _ = conn.Close() })
	defer release()
	begun, err := begin(conn)
	switch {
	case err != nil:
		_ = conn.Close()
	case begun.speaksTLS():
		l.hand(accepted{conn: tls.Server(begun, config)})
	default:
		l.hand(accepted{conn: begun})
	}
}

func (l *dualListener) hand(next accepted) {
	select {
	case l.accepted <- next:
	case <-l.lifetime.Done():
		if next.conn != nil {
			_ = next.conn.Close()
		}
	}
}

// Close implements net.Listener. It may be called more than once; only the first call has an effect and an error.
func (l *dualListener) Close() (err error) {
	l.closing.Do(func() {
		l.accepting.Do(func() {}) // acceptAll must not start any more
		l.end()
		err = l.Listener.Close()
		l.running.Wait()
	})
	return err
}

// A begunConn is a connection whose first byte has been read.
type begunConn struct {
	net.Conn
	first [1]byte
	read  bool // whether first was returned by Read
}

func begin(conn net.Conn) (*begunConn, error) {
	begun := &begunConn{Conn: conn}
	if err := conn.SetReadDeadline(time.Now().Add(headerTimeout)); err != nil {
		return nil, err
	}
	if _, err := conn.Read(begun.first[:]); err != nil {
		return nil, err
	}
	return begun, conn.SetReadDeadline(time.Time{})
}

// speaksTLS reports whether the first byte starts a TLS handshake (RFC 8446, 5.1), not a request's method.
func (c *begunConn) speaksTLS() bool { return c.first[0] == 22 }

// Read implements net.Conn. One goroutine at a time reads.
func (c *begunConn) Read(into []byte) (int, error) {
	if c.read || len(into) == 0 {
		return c.Conn.Read(into)
	}
	c.read = true
	return copy(into, c.first[:]), nil
}
