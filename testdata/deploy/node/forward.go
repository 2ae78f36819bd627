package node

import (
	"io"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// Forward lets pods reach an address of the host, which they otherwise cannot: what they send to the port at the nodes'
// address, which is returned, goes there. It ends with the test.
func (n *Node) Forward(t testing.TB, port, to string) (address string) {
	t.Helper()
	var listener net.Listener
	require.NoError(t, n.network.within(func() (err error) {
		listener, err = net.Listen("tcp", net.JoinHostPort(resolver, port))
		return err
	}))
	var open sync.WaitGroup
	open.Go(func() {
		for {
			inside, err := listener.Accept()
			if err != nil {
				return
			}
			open.Go(func() { join(inside, to) })
		}
	})
	t.Cleanup(func() { _ = listener.Close() }) // what is open ends with the pods
	return resolver
}

// join connects both sides until one of them ends.
func join(inside net.Conn, to string) {
	defer inside.Close()
	outside, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer outside.Close()
	ended := make(chan struct{}, 2)
	for from, to := range map[net.Conn]net.Conn{inside: outside, outside: inside} {
		go func() {
			_, _ = io.Copy(to, from) // however it ends, both are closed
			ended <- struct{}{}
		}()
	}
	<-ended
}
