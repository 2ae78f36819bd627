package readiness

import (
	"crypto/tls"
	"net"
	"sync"
	"sync/atomic"
)

// gate is a bound listener that accepts nothing until the protocol is known, and then speaks the one in force when a
// connection is accepted.
type gate struct {
	net.Listener
	protocol atomic.Pointer[protocol]
	known    chan struct{} // closed with the first choice of a protocol
	closed   chan struct{}
	opening  sync.Once
	closing  sync.Once
}

// protocol of new connections: plain HTTP when tls is nil.
type protocol struct{ tls *tls.Config }

func newGate(bound net.Listener) *gate {
	return &gate{Listener: bound, known: make(chan struct{}), closed: make(chan struct{})}
}

// use reports whether the protocol is another one than before.
func (g *gate) use(p *protocol) (changed bool) {
	before := g.protocol.Swap(p)
	g.opening.Do(func() { close(g.known) })
	return before == nil || (before.tls != nil) != (p.tls != nil)
}

// usesTLS may be asked once a connection was accepted.
func (g *gate) usesTLS() bool { return g.protocol.Load().tls != nil }

// Accept never shakes hands: that is left to the connection's own goroutine, so a slow client delays only itself.
func (g *gate) Accept() (net.Conn, error) {
	select {
	case <-g.known:
	case <-g.closed:
		return nil, net.ErrClosed
	}
	conn, err := g.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if p := g.protocol.Load(); p.tls != nil {
		return tls.Server(conn, p.tls), nil
	}
	return conn, nil
}

// Close may be called more than once; only the first call has an effect and an error.
func (g *gate) Close() (err error) {
	g.closing.Do(func() {
		close(g.closed)
		err = g.Listener.Close()
	})
	return err
}
