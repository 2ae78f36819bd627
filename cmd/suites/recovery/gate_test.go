package recovery_test

import (
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// dialTimeout limits how long the proxy tries to connect to an unreachable server.
const dialTimeout = 2 * time.Second

// A gate is a proxy that can delay data and refuse connections.
type gate struct {
	listener net.Listener
	server   string // address of the server as host and port
	passing  sync.WaitGroup

	mu    sync.Mutex
	shut  bool
	pause time.Duration // delay before forwarding each chunk of data
	conns map[net.Conn]bool
}

func newGate(t *testing.T, server string) *gate {
	t.Helper()
	return newGateAt(t, "127.0.0.1:0", server)
}

func newGateAt(t *testing.T, address, server string) *gate {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	require.NoError(t, err)
	g := &gate{listener: listener, server: server, conns: map[net.Conn]bool{}}
	g.passing.Go(g.serve)
	t.Cleanup(func() {
		_ = listener.Close() // makes serve return
		g.cut()
		g.passing.Wait()
	})
	return g
}

// address returns the address on which the gate is listening.
func (g *gate) address() string { return g.listener.Addr().String() }

// cut closes all connections and refuses new ones.
func (g *gate) cut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = true
	for conn := range g.conns {
		_ = conn.Close() // an error cannot keep the connection open
	}
}

// slow delays each chunk of data.
func (g *gate) slow(pause time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pause = pause
}

// open accepts connections again and removes the delay.
func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut, g.pause = false, 0
}

func (g *gate) serve() {
	for {
		client, err := g.listener.Accept()
		if err != nil {
			return
		}
		g.passing.Go(func() { g.connect(client) })
	}
}

// connect connects a client to the server and forwards data in both directions until one of them closes the
// connection.
func (g *gate) connect(client net.Conn) {
	server, err := net.DialTimeout("tcp", g.server, dialTimeout)
	if err != nil {
		_ = client.Close() // an error cannot keep the connection open
		return
	}
	if g.admit(client, server) {
		g.passing.Go(func() { g.pass(client, server) })
		g.pass(server, client)
	}
}

// admit registers a pair of connections so that cut can close them. If the gate is closed, it closes them itself and
// returns false.
func (g *gate) admit(pair ...net.Conn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, conn := range pair {
		if g.shut {
			_ = conn.Close() // an error cannot keep the connection open
		} else {
			g.conns[conn] = true
		}
	}
	return !g.shut
}

// pass copies data in one direction until one of the connections is closed, and then closes both.
func (g *gate) pass(from, to net.Conn) {
	piece := make([]byte, 64<<10)
	for {
		n, err := from.Read(piece)
		if n > 0 {
			g.delay()
			if _, failed := to.Write(piece[:n]); failed != nil {
				err = failed
			}
		}
		if err != nil {
			g.remove(from, to)
			return
		}
	}
}

func (g *gate) delay() {
	g.mu.Lock()
	pause := g.pause
	g.mu.Unlock()
	if pause > 0 {
		<-time.After(pause)
	}
}

func (g *gate) remove(pair ...net.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, conn := range pair {
		_ = conn.Close() // may already be closed
		delete(g.conns, conn)
	}
}
