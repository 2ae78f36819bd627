package node

import (
	"net"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Gateway is the address that pods reach a server at which Serve has started.
const Gateway = resolver

// patience is for a program to start on a machine with much else to do.
const patience = 2 * time.Minute

// Serve starts a program beside the nodes, which listens at a port of Gateway, and returns when it does. It ends with the test.
func (n *Node) Serve(t testing.TB, port string, command *exec.Cmd) {
	t.Helper()
	require.NoError(t, n.network.within(command.Start))
	t.Cleanup(func() {
		_ = command.Process.Kill() // it may have ended
		_ = command.Wait()
	})
	require.EventuallyWithT(t, func(collect *assert.CollectT) {
		conn, err := n.network.dial(t.Context(), "tcp", net.JoinHostPort(Gateway, port))
		if assert.NoError(collect, err) {
			_ = conn.Close()
		}
	}, patience, tick)
}
