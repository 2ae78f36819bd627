package node

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// A network is a bridge in its own network namespace that connects the pods, each with its own address. Pods cannot
// reach the host, and the host's network is not changed.
type network struct {
	name string // name of the network namespace that contains the bridge
	used map[byte]bool
}

// Pod subnet, and address of the bridge, on which the name server listens.
const (
	subnet   = "10.244.0."
	resolver = subnet + "1"
	bridge   = "pods"
)

func newNetwork(name string) (*network, error) {
	err := inNewNamespace(name, func() error {
		if err := up("lo"); err != nil {
			return err
		}
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridge}}); err != nil {
			return err
		}
		return address(bridge, resolver)
	})
	return &network{name: name, used: map[byte]bool{0: true, 1: true, 255: true}}, err
}

// sandbox creates a network namespace for a pod and connects it to the bridge.
func (n *network) sandbox(name string) (ip string, err error) {
	host, err := netns.GetFromName(n.name)
	if err != nil {
		return "", err
	}
	defer host.Close()
	ip = n.nextIP()
	err = inNewNamespace(name, func() error {
		outside := "v" + ip[len(subnet):]
		link := &netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: outside, PeerNamespace: netlink.NsFd(int(host)),
		}
		if err := netlink.LinkAdd(link); err != nil {
			return err
		}
		if err := up("lo"); err != nil {
			return err
		}
		return address("eth0", ip)
	})
	if err != nil {
		return "", err
	}
	return ip, n.within(func() error { return plug("v" + ip[len(subnet):]) })
}

// nextIP never returns the same address twice, so that a client of a deleted pod cannot reach a different one.
func (n *network) nextIP() string {
	for last := byte(2); last < 255; last++ {
		if !n.used[last] {
			n.used[last] = true
			return fmt.Sprint(subnet, last)
		}
	}
	panic("no free IP addresses: a node can run at most 253 pods")
}

// wire changes the bridge's end of a pod's link.
func (n *network) wire(ip string, change func(netlink.Link) error) error {
	return n.within(func() error {
		link, err := netlink.LinkByName("v" + ip[len(subnet):])
		if err != nil {
			return err
		}
		return change(link)
	})
}

func (n *network) close() { _ = netns.DeleteNamed(n.name) }

// unplug removes a network namespace and its link.
func unplug(name string) { _ = netns.DeleteNamed(name) }

// dial connects to a pod's address from the network namespace of the nodes.
func (n *network) dial(ctx context.Context, protocol, address string) (conn net.Conn, err error) {
	err = n.within(func() error {
		var dialer net.Dialer
		conn, err = dialer.DialContext(ctx, protocol, address)
		return err
	})
	return conn, err
}

// within calls do in the network namespace of the nodes.
func (n *network) within(do func() error) error { return inNamespace(n.name, do) }

// inNamespace calls do on a thread that temporarily enters the network namespace.
func inNamespace(name string, do func() error) error {
	there, err := netns.GetFromName(name)
	if err != nil {
		return err
	}
	defer there.Close()
	return onThread(func() error {
		if err := netns.Set(there); err != nil {
			return err
		}
		return do()
	})
}

// connect copies data between a stream and an address in a network namespace until one of them is closed.
func connect(namespace, address string, stream io.ReadWriteCloser) error {
	var conn net.Conn
	err := inNamespace(namespace, func() (err error) {
		conn, err = net.Dial("tcp", address)
		return err
	})
	if err != nil {
		return err
	}
	join(stream, conn)
	return nil
}

func inNewNamespace(name string, do func() error) error {
	return onThread(func() error {
		made, err := netns.NewNamed(name)
		if err != nil {
			return fmt.Errorf("cannot create the network namespace %s: %w", name, err)
		}
		defer made.Close()
		return do()
	})
}

// onThread calls do on a locked thread. If the thread cannot return to its network namespace, onThread leaves it
// locked, so that the Go runtime terminates it when the goroutine ends.
func onThread(do func() error) error {
	ended := make(chan error)
	go func() {
		runtime.LockOSThread()
		home, err := netns.Get()
		if err == nil {
			err = do()
			if back := netns.Set(home); back == nil {
				runtime.UnlockOSThread()
			}
			_ = home.Close()
		}
		ended <- err
	}()
	return <-ended
}

func up(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(link)
}

func address(name, ip string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	parsed, err := netlink.ParseAddr(ip + "/24")
	if err != nil {
		return err
	}
	if err := netlink.AddrAdd(link, parsed); err != nil {
		return err
	}
	return netlink.LinkSetUp(link)
}

func plug(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	master, err := netlink.LinkByName(bridge)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetMaster(link, master); err != nil {
		return err
	}
	return netlink.LinkSetUp(link)
}

// Root reports whether this process may create namespaces.
func Root() bool { return os.Getuid() == 0 }

// Forward forwards a port on the nodes' address to an address on the host until the test ends, and returns the nodes'
// address. Pods can reach that address but not the host.
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
			open.Go(func() {
				outside, err := net.Dial("tcp", to)
				if err != nil {
					_ = inside.Close() // the client sees that the connection is closed
					return
				}
				join(inside, outside)
			})
		}
	})
	t.Cleanup(func() { _ = listener.Close() }) // open connections are closed when the pods terminate
	return resolver
}

// join copies data in both directions until one connection is closed, and then closes both.
func join(one, other io.ReadWriteCloser) {
	defer one.Close()
	defer other.Close()
	ended := make(chan struct{}, 2)
	pass := func(to io.Writer, from io.Reader) {
		_, _ = io.Copy(to, from) // join closes both connections anyway
		ended <- struct{}{}
	}
	go pass(one, other)
	go pass(other, one)
	<-ended
}

// Gateway is the address at which pods reach a server started by Serve.
const Gateway = resolver

// startTimeout limits how long Serve waits until a program is listening. It is long enough for a busy machine.
const startTimeout = 2 * time.Minute

// Serve starts a program that listens on a port on Gateway, waits until it is listening, and lets it run until the
// test ends.
func (n *Node) Serve(t testing.TB, port string, command *exec.Cmd) {
	t.Helper()
	require.NoError(t, n.network.within(command.Start))
	t.Cleanup(func() {
		_ = command.Process.Kill() // the process may have exited already
		_ = command.Wait()
	})
	require.EventuallyWithT(t, func(collect *assert.CollectT) {
		conn, err := n.network.dial(t.Context(), "tcp", net.JoinHostPort(Gateway, port))
		if assert.NoError(collect, err) {
			_ = conn.Close()
		}
	}, startTimeout, tick)
}
