// Package ports leases TCP ports to tests. A leased port is not used by other tests, nor by the kernel for outgoing
// connections. The package is for programs that need a port number; a test that can pass a listener should listen
// on port 0.
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

// lowest is the first port to lease; lower ports are for well-known services.
const lowest = 10000

var leases struct {
	sync.Mutex
	next  int        // offset of the next candidate
	files []*os.File // one per lease: an open file keeps the lock until this process exits
}

// Lease returns a port that can be bound on every address. The port stays reserved until this process exits, so
// that a late connection of one test cannot reach the server of another.
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
	require.FailNow(t, "no port is free", "from %d to %d", first, first+count-1)
	return 0
}

// lock reserves a port for this process, unless another test has reserved it or another program is listening there.
func lock(t testing.TB, port int) bool {
	t.Helper()
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("etcd-wrapper-test-ports-%d", os.Getuid()))
	require.NoError(t, os.MkdirAll(dir, 0o700))
	file, err := os.OpenFile(filepath.Join(dir, fmt.Sprint(port)), os.O_RDWR|os.O_CREATE, 0o600)
	require.NoError(t, err)
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) || !canBind(port) {
		_ = file.Close() // the file was only read
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
	require.Positive(t, max(below, above), "ports outside %d to %d", from, to)
	if below >= above {
		return lowest, below
	}
	return to + 1, above
}
