package faults_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// wires is a network of namespaces, one per member, that are connected by a bridge in another namespace. It does not
// affect the host's network.
type wires struct {
	t      *testing.T
	prefix string // prefix of the namespaces' names
	count  int
}

// newWires creates a network that exists until the test ends. It requires root and ip(8).
func newWires(t *testing.T) *wires {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("skipped: network namespaces require root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("skipped: network namespaces require the command ip: " + err.Error())
	}
	w := &wires{t: t, prefix: fmt.Sprintf("etcd-wrapper-%d-", os.Getpid())}
	w.add("hub")
	w.ip("-n", w.name("hub"), "link", "add", "hub", "type", "bridge")
	w.address("hub", "hub", 1)
	return w
}

func (w *wires) name(of string) string { return w.prefix + of }

func (w *wires) add(name string) {
	w.t.Helper()
	w.ip("netns", "add", w.name(name))
	w.t.Cleanup(func() { w.ip("netns", "delete", w.name(name)) })
	w.ip("-n", w.name(name), "link", "set", "lo", "up")
}

// attach creates a network namespace, connects it to the bridge and gives it the host's IP address.
func (w *wires) attach(name string, host int) {
	w.t.Helper()
	w.count++
	wire := fmt.Sprintf("wire%d", w.count)
	w.add(name)
	w.ip("-n", w.name("hub"), "link", "add", wire, "type", "veth", "peer", "name", "eth0", "netns", w.name(name))
	w.ip("-n", w.name("hub"), "link", "set", wire, "master", "hub", "up")
	w.address(name, "eth0", host)
}

// at returns the IP address of a host in the network.
func at(host int) string { return fmt.Sprintf("10.77.0.%d", host) }

func (w *wires) address(name, link string, host int) {
	w.t.Helper()
	w.ip("-n", w.name(name), "address", "flush", "dev", link)
	w.ip("-n", w.name(name), "address", "add", at(host)+"/24", "dev", link)
	w.ip("-n", w.name(name), "link", "set", link, "up")
}

func (w *wires) ip(args ...string) {
	w.t.Helper()
	out, err := exec.Command("ip", args...).CombinedOutput()
	require.NoError(w.t, err, "ip %v: %s", args, out)
}

// dial connects to an address from within the bridge's namespace, from which all members are reachable.
func (w *wires) dial(ctx context.Context, address string) (conn net.Conn, err error) {
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		runtime.LockOSThread() // never unlocked, so that the thread exits together with this goroutine
		hub, failed := unix.Open("/run/netns/"+w.name("hub"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if failed != nil {
			err = failed
			return
		}
		defer unix.Close(hub)
		if err = unix.Setns(hub, unix.CLONE_NEWNET); err == nil {
			conn, err = (&net.Dialer{FallbackDelay: -1}).DialContext(ctx, "tcp", address)
		}
	}()
	<-finished
	return conn, err
}
