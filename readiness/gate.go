package readiness

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// gate is a bound listener that speaks the protocol in force when a connection is accepted: plain HTTP at first. Clients
// on loopback may speak plain HTTP at any time, on the same port, so that `etcd-wrapper status`, kubectl port-forward and
// a person in the pod need to know nothing of certificates.
type gate struct {
	net.Listener
	protocol atomic.Pointer[protocol]
	accepted chan accepted
	sorts    bool // Accept leaves connections to acceptAll from now on; plain HTTP alone needs no further goroutine

	lifetime  context.Context //nolint:containedctx // it ends the first reads of connections
	end       context.CancelFunc
	accepting sync.Once
	closing   sync.Once
	running   sync.WaitGroup // what accepts, and first reads
}

// protocol of new connections: plain HTTP when tls is nil.
type protocol struct{ tls *tls.Config }

type accepted struct {
	conn net.Conn
	err  error
}

func newGate(bound net.Listener) *gate {
	g := &gate{Listener: bound, accepted: make(chan accepted)}
	g.lifetime, g.end = context.WithCancel(context.Background())
	return g
}

// use reports whether the protocol is another one than before.
func (g *gate) use(p *protocol) (changed bool) {
	before := g.protocol.Swap(p)
	return before == nil || (before.tls != nil) != (p.tls != nil)
}

func (g *gate) usesTLS() bool { return g.tls() != nil }

func (g *gate) tls() *tls.Config {
	if p := g.protocol.Load(); p != nil {
		return p.tls
	}
	return nil
}

// Accept never shakes hands: that is left to the connection's own goroutine, so a slow client delays only itself. One
// goroutine at a time calls it.
func (g *gate) Accept() (net.Conn, error) {
	var first net.Conn
	if !g.sorts && !g.usesTLS() {
		conn, err := g.Listener.Accept()
		config := g.tls()
		if err != nil || config == nil {
			return conn, err
		}
		first = conn // TLS came into force meanwhile
	}
	g.sorts = true
	g.accepting.Do(func() { g.running.Go(func() { g.acceptAll(first) }) })
	select {
	case next := <-g.accepted:
		return next.conn, next.err
	case <-g.lifetime.Done():
		return nil, net.ErrClosed
	}
}

// acceptAll runs until the gate is closed, and begins with a connection that is there already, if one is. An error is
// handed on once each time somebody asks, who decides what it means.
func (g *gate) acceptAll(first net.Conn) {
	if first != nil {
		g.sort(first, g.tls())
	}
	for g.lifetime.Err() == nil {
		conn, err := g.Listener.Accept()
		if err != nil {
			g.hand(accepted{err: err})
			continue
		}
		g.sort(conn, g.tls())
	}
}

func (g *gate) sort(conn net.Conn, config *tls.Config) {
	switch {
	case config == nil:
		g.hand(accepted{conn: conn})
	case onLoopback(conn.RemoteAddr().String()):
		g.running.Go(func() { g.handLocal(conn, config) })
	default:
		g.hand(accepted{conn: tls.Server(conn, config)})
	}
}

// handLocal waits for a local client's first byte, which tells which protocol it speaks.
func (g *gate) handLocal(conn net.Conn, config *tls.Config) {
	release := context.AfterFunc(g.lifetime, func() { _ = conn.Close() })
	defer release()
	begun, err := begin(conn)
	switch {
	case err != nil:
		_ = conn.Close()
	case begun.speaksTLS():
		g.hand(accepted{conn: tls.Server(begun, config)})
	default:
		g.hand(accepted{conn: begun})
	}
}

func (g *gate) hand(next accepted) {
	select {
	case g.accepted <- next:
	case <-g.lifetime.Done():
		if next.conn != nil {
			_ = next.conn.Close()
		}
	}
}

// Close may be called more than once; only the first call has an effect and an error.
func (g *gate) Close() (err error) {
	g.closing.Do(func() {
		g.accepting.Do(func() {}) // not any more
		g.end()
		err = g.Listener.Close()
		g.running.Wait()
	})
	return err
}

// begunConn is a connection whose first byte was read ahead.
type begunConn struct {
	net.Conn
	first [1]byte
	read  bool // first was handed on
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

// speaksTLS tells a handshake (RFC 8446, 5.1) from the letter that a request begins with.
func (c *begunConn) speaksTLS() bool { return c.first[0] == 22 }

// Read implements net.Conn. One goroutine at a time reads.
func (c *begunConn) Read(into []byte) (int, error) {
	if c.read || len(into) == 0 {
		return c.Conn.Read(into)
	}
	c.read = true
	return copy(into, c.first[:]), nil
}
