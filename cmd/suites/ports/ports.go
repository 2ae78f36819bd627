// Package ports leases TCP ports to tests. No other test uses a leased port, and the kernel does not use it for
// outgoing connections. Use it for programs that take a port number. Tests that can pass a listener should listen on
// port 0 instead.
package ports

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// lowest is the first port to lease. Lower ports are left to well-known services.
const lowest = 10000

var leases struct {
	sync.Mutex
	next  int        // offset of the last port tried, in the range of ports to lease; 0 before the first lease
	files []*os.File // one file per lease, whose lock is held until the process exits
}

// Lease returns a port that is free on every address. The port remains reserved until this process exits, so that a
// late connection from one test cannot reach the server of another.
func Lease(t testing.TB) int {
	t.Helper()
	leases.Lock()
	defer leases.Unlock()
	first, count := outsideEphemeral(t)
	if leases.next == 0 {
		leases.next = rand.IntN(count)
	}
	for range count {
		leases.next++
		if port := first + leases.next%count; lock(t, port) {
			return port
		}
	}
	require.FailNow(t, "all ports are in use", "from %d to %d", first, first+count-1)
	return 0
}

// lock reserves a port for this process and reports whether it succeeded. It fails if another test has reserved the
// port or another program is listening on it.
func lock(t testing.TB, port int) bool {
	t.Helper()
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("etcd-wrapper-test-ports-%d", os.Getuid()))
	require.NoError(t, os.MkdirAll(dir, 0o700))
	file, err := os.OpenFile(filepath.Join(dir, fmt.Sprint(port)), os.O_RDWR|os.O_CREATE, 0o600)
	require.NoError(t, err)
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) || !canBind(port) {
		_ = file.Close() // nothing was written, so a close error is harmless
		return false
	}
	leases.files = append(leases.files, file)
	return true
}

func canBind(port int) bool {
	listener, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
	return err == nil && listener.Close() == nil
}

// outsideEphemeral returns the larger range of ports above lowest that the kernel does not use for outgoing
// connections.
func outsideEphemeral(t testing.TB) (first, count int) {
	t.Helper()
	file, err := os.Open("/proc/sys/net/ipv4/ip_local_port_range")
	require.NoError(t, err)
	defer file.Close()
	var from, to int
	_, err = fmt.Fscan(bufio.NewReader(file), &from, &to)
	require.NoError(t, err)
	below, above := from-lowest, 1<<16-(to+1)
	require.Positive(t, max(below, above), "no ports outside the range %d to %d", from, to)
	if below >= above {
		return lowest, below
	}
	return to + 1, above
}
