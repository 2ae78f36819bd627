// Package node implements a small kubelet. It runs each pod with runc in a network namespace of its own, and
// registers three Node objects that all represent this machine. It supports the features that the manifests in deploy
// use: probes, grace periods, read-only root file systems, users, persistent volume claims, ConfigMaps, Secrets,
// service account tokens, environment variables, kubectl exec and port-forward, and DNS names for Services.
//
// It differs from a real kubelet in three ways: it does not load seccomp profiles, it restarts containers sooner, and
// it resolves a Service to the addresses of its pods.
package node

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// tick is the interval between checks.
const tick = 250 * time.Millisecond

// A Node runs the pods of one namespace. Machines.Start creates one.
type Node struct {
	client    kubernetes.Interface
	runc      string
	images    imageStore
	dir       string
	namespace string
	network   *network
	log       func(format string, args ...any)
	disks     int64 // size of each volume in bytes; 0 means unlimited
	loops     sync.WaitGroup

	mu   sync.Mutex
	pods map[types.UID]*corev1.Pod // as last read from the API server
	lost map[string]bool           // names of the machines that have been switched off
}

// Option configures a Node.
type Option func(*Node)

// SmallDisks gives every volume its own file system of the given size.
func SmallDisks(bytes int64) Option { return func(n *Node) { n.disks = bytes } }

// Start runs the pods of a namespace until the end of the test. It must be called as root, within Contain.
func (m *Machines) Start(t testing.TB, namespace, runc string, images map[string]*Image, options ...Option) *Node {
	t.Helper()
	n := &Node{
		client: m.client, runc: runc, images: imageStore{images: images}, dir: t.TempDir(), namespace: namespace,
		log: t.Logf, pods: map[types.UID]*corev1.Pod{}, lost: map[string]bool{},
	}
	for _, option := range options {
		option(n)
	}
	reachable(t, n.dir)
	require.NoError(t, os.MkdirAll(filepath.Join(n.dir, "logs"), 0o700))
	var err error
	n.network, err = newNetwork(namespace)
	require.NoError(t, err)
	t.Cleanup(n.network.close)
	n.serveNames(t)
	m.add(n)
	ctx, stop := context.WithCancel(context.Background())
	n.loops.Go(func() { n.watch(ctx) })
	t.Cleanup(func() {
		stop()
		n.loops.Wait()
		n.removeDisks()
		if t.Failed() {
			n.showLogs(t)
		}
	})
	return n
}

// reachable allows the users of pods to access volumes under dir.
func reachable(t testing.TB, dir string) {
	for ; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		require.NoError(t, os.Chmod(dir, 0o755))
	}
}

func (n *Node) serveNames(t testing.TB) {
	var conn net.PacketConn
	require.NoError(t, n.network.within(func() (err error) {
		conn, err = net.ListenPacket("udp4", resolver+":53")
		return err
	}))
	t.Cleanup(func() { _ = conn.Close() })
	go n.answerNames(conn)
}

// watch starts each pod that is bound to a node and is not running yet. watch returns when all pods have terminated.
func (n *Node) watch(ctx context.Context) {
	var running sync.WaitGroup
	known := map[types.UID]bool{}
	for ; ctx.Err() == nil; sleep(ctx, tick) {
		n.provision(ctx)
		list, err := n.client.CoreV1().Pods(n.namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			continue
		}
		n.remember(list.Items)
		for i := range list.Items {
			if pod := &list.Items[i]; pod.Spec.NodeName != "" && !known[pod.UID] {
				known[pod.UID] = true
				running.Go(func() { n.work(ctx, pod.DeepCopy()) })
			}
		}
	}
	running.Wait()
}

func (n *Node) remember(pods []corev1.Pod) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pods = map[types.UID]*corev1.Pod{}
	for i := range pods {
		n.pods[pods[i].UID] = &pods[i]
	}
}

func (n *Node) seen(pod *corev1.Pod) (*corev1.Pod, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	found, ok := n.pods[pod.UID]
	return found, ok
}

// named returns the pod with the given name, as last read from the API server.
func (n *Node) named(name string) (*corev1.Pod, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, pod := range n.pods {
		if pod.Name == name {
			return pod, nil
		}
	}
	return nil, fmt.Errorf("pod %s not found", name)
}

func (n *Node) sandboxName(pod *corev1.Pod) string { return n.namespace + "-" + string(pod.UID) }

func (n *Node) cgroup(pod *corev1.Pod, container *corev1.Container) string {
	return filepath.Join("/", group(), string(pod.UID)+"-"+container.Name)
}

// State returns the path of runc's state directory.
func (n *Node) State() string { return filepath.Join(n.dir, "runc") }

// LogFile returns the path of the file that contains a container's output. Restarted containers and new pods with the
// same name append to it.
func (n *Node) LogFile(namespace, pod, container string) string {
	return filepath.Join(n.dir, "logs", namespace+"_"+pod+"_"+container+".log")
}
