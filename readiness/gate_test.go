package readiness

import (
	"net"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// counted is a listener that has a connection for everyone who asks.
type counted struct {
	net.Listener
	accepted int
}

func (c *counted) Accept() (net.Conn, error) {
	c.accepted++
	near, _ := net.Pipe()
	return near, nil
}

func (c *counted) Close() error { return nil }

func TestGateAcceptsNothingUntilTheProtocolIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bound := &counted{}
		g := newGate(bound)
		done := make(chan error)
		go func() { _, err := g.Accept(); done <- err }()
		synctest.Wait()
		require.Zero(t, bound.accepted)

		g.use(&protocol{})
		require.NoError(t, <-done)
		require.Equal(t, 1, bound.accepted)
	})
}

func TestClosedGateEndsTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(&counted{})
		done := make(chan error)
		go func() { _, err := g.Accept(); done <- err }()
		synctest.Wait()
		require.NoError(t, g.Close())
		require.ErrorIs(t, <-done, net.ErrClosed)
		require.NoError(t, g.Close(), "twice")
	})
}
