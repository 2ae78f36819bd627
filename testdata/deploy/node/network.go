package node

import (
	"context"
	"fmt"
	"net"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// network is a bridge in a namespace of its own, with an address for each pod. Nothing of the host is touched, and nothing
// of it can be reached from a pod.
type network struct {
	name string // of the namespace with the bridge
	used map[byte]bool
}

// The one subnet, and the address of the bridge, where the name server listens.
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

// sandbox makes the namespace of a pod and connects it.
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

// nextIP never gives an address twice: a pod that is gone must not be met at another's.
func (n *network) nextIP() string {
	for last := byte(2); last < 255; last++ {
		if !n.used[last] {
			n.used[last] = true
			return fmt.Sprint(subnet, last)
		}
	}
	panic("more than 253 pods were run on one node")
}

// wire changes the nodes' end of a pod's wire.
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

// unplug takes the namespace away, and with it the wire.
func unplug(name string) { _ = netns.DeleteNamed(name) }

// dial connects from where the nodes are to an address of a pod.
func (n *network) dial(ctx context.Context, protocol, address string) (conn net.Conn, err error) {
	err = n.within(func() error {
		var dialer net.Dialer
		conn, err = dialer.DialContext(ctx, protocol, address)
		return err
	})
	return conn, err
}

// within runs something in the nodes' namespace, on a thread that goes there and comes back.
func (n *network) within(do func() error) error {
	there, err := netns.GetFromName(n.name)
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

func inNewNamespace(name string, do func() error) error {
	return onThread(func() error {
		made, err := netns.NewNamed(name)
		if err != nil {
			return fmt.Errorf("cannot make the network namespace %s: %w", name, err)
		}
		defer made.Close()
		return do()
	})
}

// onThread gives do a thread of its own, which dies with the goroutine if it can't be brought back.
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

// Root says whether this process may make namespaces.
func Root() bool { return os.Getuid() == 0 }
