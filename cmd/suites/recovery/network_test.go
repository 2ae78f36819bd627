package recovery_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/pkg/v3/types"

	"etcd-wrapper/cmd/suites/harness"
)

// A network connects the members of a cluster. Each member has its own network namespace, and a bridge connects the
// namespaces.
type network struct {
	t      *testing.T
	name   string // name of the bridge, and prefix of the names of namespaces
	subnet string
}

// networks counts the networks that this process has created, to give each a different name and subnet.
var networks atomic.Int32

// newNetwork creates a network. It skips the test if that is impossible, for example without root.
func newNetwork(t *testing.T) *network {
	t.Helper()
	number := int(networks.Add(1))
	n := &network{t: t, name: fmt.Sprintf("ew%x-%d", os.Getpid(), number), subnet: fmt.Sprintf("198.18.%d.", (os.Getpid()*16+number)%256)}
	if out, err := exec.Command("ip", "link", "add", n.name, "type", "bridge").CombinedOutput(); err != nil {
		t.Skipf("skipped: cannot create a network bridge: %v: %s", err, out)
	}
	t.Cleanup(func() { n.ip("link", "del", n.name) })
	n.ip("addr", "add", n.subnet+"254/24", "dev", n.name)
	n.ip("link", "set", n.name, "up")
	return n
}

func (n *network) ip(args ...string) {
	n.t.Helper()
	out, err := exec.Command("ip", args...).CombinedOutput()
	require.NoError(n.t, err, "ip %s: %s", strings.Join(args, " "), out)
}

// space returns the name of a member's namespace, which is also the name of its interface on the bridge.
func (n *network) space(member int) string { return fmt.Sprintf("%s-%d", n.name, member) }

func (n *network) address(member int) string { return n.subnet + fmt.Sprint(member+1) }

// addNamespace makes a pod run its processes in a network namespace of its own. A proxy makes the pod's ports
// reachable on 127.0.0.1 outside the namespace, too.
func (n *network) addNamespace(p *harness.Pod, member int) {
	n.t.Helper()
	space, inside := n.space(member), "eth0"
	n.ip("netns", "add", space)
	n.t.Cleanup(func() { n.ip("netns", "del", space) })
	n.ip("link", "add", space, "type", "veth", "peer", "name", inside, "netns", space)
	n.ip("link", "set", space, "master", n.name, "up")
	n.ip("-n", space, "link", "set", "lo", "up")
	n.ip("-n", space, "addr", "add", n.address(member)+"/24", "dev", inside)
	n.ip("-n", space, "link", "set", inside, "up")
	p.Under = []string{"ip", "netns", "exec", space}
	for _, port := range []int{p.Port, p.ClientPort} {
		newGateAt(n.t, fmt.Sprintf("127.0.0.1:%d", port), fmt.Sprintf("%s:%d", n.address(member), port))
	}
}

// cut disconnects a member from the other members.
func (n *network) cut(member int) { n.ip("link", "set", n.space(member), "down") }

// join reconnects a member.
func (n *network) join(member int) { n.ip("link", "set", n.space(member), "up") }

// setPeers sets the members' addresses in the configuration of every pod.
func (n *network) setPeers(pods []*harness.Pod) {
	n.t.Helper()
	cluster := types.URLsMap{}
	for i, p := range pods {
		client, peer := fmt.Sprintf("http://%s:%d", n.address(i), p.ClientPort), fmt.Sprintf("http://%s:%d", n.address(i), p.PeerPort)
		p.Config["listen-client-urls"], p.Config["advertise-client-urls"] = client+",http://127.0.0.1:"+fmt.Sprint(p.ClientPort), client
		p.Config["listen-peer-urls"], p.Config["initial-advertise-peer-urls"] = peer, peer
		cluster[fmt.Sprint(p.Config["name"])] = types.MustNewURLs([]string{peer})
	}
	for _, p := range pods {
		p.Config["initial-cluster"] = cluster.String()
		p.WriteConfigFile()
	}
}
