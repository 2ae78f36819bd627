package robustness

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/pkg/v3/proxy"
	"go.uber.org/zap"

	"etcd-wrapper/cmd/suites/harness"
	"etcd-wrapper/cmd/suites/ports"
)

// A cluster contains the current run of each member.
type cluster struct {
	*testing.T

	pods  []*harness.Pod
	runs  []*harness.Run
	links []proxy.Server // proxies to each member's peer URL
	lost  []int          // members that have lost their volume, whose logs therefore do not start with the cluster

	began    time.Time // start of the traffic
	restored []restore // restores of a single-member cluster, oldest first
}

// A failure is a fault or an operation that a cluster must withstand. inject causes it and returns once all members
// are ready again.
type failure struct {
	name   string
	inject func(*cluster)
}

var failures = []failure{
	{"a kill", func(c *cluster) { c.kill(rand.IntN(len(c.pods))) }},
	{"a kill of all members", func(c *cluster) { c.kill(0, 1, 2) }},
	{"an orderly stop", func(c *cluster) { c.stop(rand.IntN(len(c.pods))) }},
	{"an orderly stop of the leader", func(c *cluster) { c.stop(c.leader()) }},
	{"a pause", pause},
	{"defragmentations by a client", defragmentByClient},
	{"defragmentations by the members", defragmentByMembers},
	{"a leadership transfer", moveLeader},
	{"a network partition", cutLink},
}

func (c *cluster) kill(members ...int) {
	c.Helper()
	for _, i := range members {
		c.runs[i].Kill()
	}
	c.restart(members...)
}

func (c *cluster) stop(i int) {
	c.Helper()
	c.runs[i].Shutdown()
	c.restart(i)
}

func (c *cluster) restart(members ...int) {
	c.Helper()
	for _, i := range members {
		c.runs[i] = c.pods[i].Start()
	}
	for _, i := range members {
		c.runs[i].AwaitReady()
	}
}

func pause(c *cluster) {
	c.Helper()
	i := rand.IntN(len(c.pods))
	c.runs[i].Signal(syscall.SIGSTOP)
	<-time.After(3 * time.Second) // long enough for the other members to elect a new leader
	c.runs[i].Signal(syscall.SIGCONT)
	c.runs[i].AwaitReady()
}

// link starts a proxy for each member's peer URL, so that cutLink can block the connections between members.
func (c *cluster) link() {
	c.Helper()
	for _, p := range c.pods {
		from := url.URL{Scheme: "tcp", Host: fmt.Sprintf("127.0.0.1:%d", ports.Lease(c.T))}
		link := proxy.NewServer(proxy.ServerConfig{Logger: zap.NewNop(), From: from, To: url.URL{Scheme: "tcp", Host: fmt.Sprintf("127.0.0.1:%d", p.PeerPort)}})
		ended := make(chan struct{})
		go func() { defer close(ended); drain(link) }()
		c.Cleanup(func() { _ = link.Close(); <-ended })
		<-link.Ready()
		c.links = append(c.links, link)
		direct, linked := p.PeerURL(), "http://"+from.Host
		p.Config["initial-advertise-peer-urls"] = linked
		for _, each := range c.pods {
			each.Config["initial-cluster"] = strings.ReplaceAll(each.Config["initial-cluster"].(string), direct, linked)
		}
	}
}

// drain discards a proxy's reports about connections to a stopped member. A proxy stops accepting connections once it
// has 16 unread reports.
func drain(link proxy.Server) {
	for {
		select {
		case <-link.Error():
		case <-link.Done():
			return
		}
	}
}

// cutLink blocks a member's peer connections in both directions for longer than an election takes.
func cutLink(c *cluster) {
	c.Helper()
	i := rand.IntN(len(c.pods))
	c.links[i].BlackholeTx()
	c.links[i].BlackholeRx()
	<-time.After(3 * time.Second)
	c.links[i].UnblackholeTx()
	c.links[i].UnblackholeRx()
	c.runs[i].AwaitReady()
}

func loseVolume(c *cluster) {
	c.Helper()
	i := rand.IntN(len(c.pods))
	c.runs[i].Kill()
	require.NoError(c, os.RemoveAll(c.pods[i].Volume))
	require.NoError(c, os.Mkdir(c.pods[i].Volume, 0o700))
	c.lost = append(c.lost, i)
	c.restart(i)
}

func defragmentByClient(c *cluster) {
	c.Helper()
	for _, p := range c.pods {
		harness.Eventually(c.T, "the member is defragmented", func() bool {
			_, err := p.Etcd().Defragment(c.Context(), p.Endpoint())
			return err == nil
		})
	}
}

func defragmentByMembers(c *cluster) {
	c.Helper()
	for i, p := range c.pods {
		harness.Eventually(c.T, "the member is defragmented", func() bool {
			_, _, status := p.Begin("defrag").Wait()
			return status == 0
		})
		c.runs[i].AwaitReady()
	}
}

func moveLeader(c *cluster) {
	c.Helper()
	harness.Eventually(c.T, "leadership moves", func() bool {
		from := c.leader()
		to := (from + 1 + rand.IntN(len(c.pods)-1)) % len(c.pods)
		status, err := c.pods[to].Etcd().Status(c.Context(), c.pods[to].Endpoint())
		if err != nil {
			return false
		}
		_, err = c.pods[from].Etcd().MoveLeader(c.Context(), status.Header.MemberId)
		return err == nil
	})
}

// leader returns the index of the leader.
func (c *cluster) leader() (leads int) {
	c.Helper()
	harness.Eventually(c.T, "the cluster has a leader", func() bool {
		leads = slices.IndexFunc(c.pods, func(p *harness.Pod) bool {
			ctx, cancel := context.WithTimeout(c.Context(), time.Second)
			defer cancel()
			status, err := p.Etcd().Status(ctx, p.Endpoint())
			return err == nil && status.Leader == status.Header.MemberId
		})
		return leads >= 0
	})
	return leads
}

// wholeLogs returns the data directories of the members whose logs go back to the start of the cluster.
func (c *cluster) wholeLogs() (dirs []string) {
	for i, p := range c.pods {
		if !slices.Contains(c.lost, i) {
			dirs = append(dirs, p.DataDir())
		}
	}
	return dirs
}
