package ports_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/ports"
)

// leaseMany is the environment variable that makes the test binary lease ports, print them and hold them until the
// input is closed.
const leaseMany = "TEST_LEASES_PORTS"

const many = 50

func TestPorts_oneProcessAtATime(t *testing.T) {
	if os.Getenv(leaseMany) != "" {
		leaseAndHold(t)
		return
	}
	holder := map[int]string{}
	for range many {
		port := ports.Lease(t)
		require.Empty(t, holder[port], "port %d is leased once", port)
		holder[port] = "this process"
	}
	for _, name := range []string{"first", "second"} {
		for _, port := range leasedByAnotherProcess(t) {
			require.Empty(t, holder[port], "port %d is leased once", port)
			holder[port] = name
		}
	}
	assert.Len(t, holder, 3*many)
	for port := range holder {
		listener, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
		require.NoError(t, err, "the port can be bound")
		require.NoError(t, listener.Close())
	}
}

func leaseAndHold(t *testing.T) {
	for range many {
		fmt.Println(ports.Lease(t))
	}
	fmt.Println("held")
	_, _ = fmt.Scanln() // blocks until the input is closed
}

// leasedByAnotherProcess starts a process that leases ports and holds them until the end of the test.
func leasedByAnotherProcess(t *testing.T) (leased []int) {
	t.Helper()
	command := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	command.Env = append(os.Environ(), leaseMany+"=1")
	input, err := command.StdinPipe()
	require.NoError(t, err)
	output, err := command.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start())
	t.Cleanup(func() {
		require.NoError(t, input.Close())
		require.NoError(t, command.Wait())
	})
	for range many {
		var port int
		_, err := fmt.Fscanln(output, &port)
		require.NoError(t, err)
		leased = append(leased, port)
	}
	return leased
}

func TestPorts_outsideTheEphemeralRange(t *testing.T) {
	content, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	require.NoError(t, err)
	var from, to int
	_, err = fmt.Fscan(strings.NewReader(string(content)), &from, &to)
	require.NoError(t, err)
	port := ports.Lease(t)
	assert.True(t, port < from || port > to, "%d is outside of %d to %d", port, from, to)
}
