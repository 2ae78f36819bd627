package stories

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"etcd-wrapper/testdata/deploy/cluster"
	"etcd-wrapper/testdata/deploy/node"
)

// namespace is where the stories play.
const namespace = "play"

// world is a cluster whose pods are run.
type world struct {
	*cluster.Cluster
	t    *testing.T
	node *node.Node

	identity *tls.Config // of clients; nil without TLS
}

func newWorld(t *testing.T, options ...node.Option) *world {
	t.Helper()
	if !node.Root() {
		t.Skip("SKIPPED: pods are run in network namespaces, which only root may make")
	}
	root := filepath.Join(t.TempDir(), "wrapper")
	image, err := node.Unpack(filepath.Join(cluster.Checkout(), "bin/image"), root)
	require.NoError(t, err)
	c := cluster.Start(t)
	images := map[string]*node.Image{"etcd-wrapper": image, registry: image, sidecarImage: scriptedSidecar(t)}
	w := &world{Cluster: c, t: t, node: node.Start(t, c.Client, cluster.Tool("runc"), images, options...)}
	restricted(t, c, namespace)
	return w
}

func (w *world) apply(folder string) {
	w.t.Helper()
	out, err := apply(w.Cluster, namespace, folder)
	require.NoError(w.t, err, out)
}

func (w *world) pods() map[string]*corev1.Pod {
	w.t.Helper()
	found, err := members(w.Cluster, namespace)
	require.NoError(w.t, err)
	return found
}

// awaitReady waits until the StatefulSet says that as many pods of its newest revision are ready as there should be.
func (w *world) awaitReady(count int) {
	w.t.Helper()
	cluster.Eventually(w.t, fmt.Sprintf("%d members are ready", count), func() error {
		set, err := w.Client.AppsV1().StatefulSets(namespace).Get(context.Background(), "etcd-main", metav1.GetOptions{})
		if err != nil {
			return err
		}
		s := set.Status
		if s.ObservedGeneration != set.Generation || int(s.ReadyReplicas) != count || int(s.UpdatedReplicas) != count || int(s.Replicas) != count {
			return fmt.Errorf("of %d pods %d are ready and %d updated", s.Replicas, s.ReadyReplicas, s.UpdatedReplicas)
		}
		return nil
	})
}

// etcd is a client that goes where clients in the namespace go: to a Service of ready members.
func (w *world) etcd() *clientv3.Client {
	w.t.Helper()
	scheme := "http"
	if w.identity != nil {
		scheme = "https"
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{scheme + "://etcd-main-client:2379"}, TLS: w.identity, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return w.node.Dial(ctx, namespace, address)
		})},
	})
	require.NoError(w.t, err)
	w.t.Cleanup(func() { _ = client.Close() })
	return client
}

// greet writes the key that greeted looks for.
func (w *world) greet() {
	w.t.Helper()
	require.NoError(w.t, tryPut(w.etcd(), "greeting", "hello", 10*time.Second))
}

func tryPut(client *clientv3.Client, key, value string, within time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	_, err := client.Put(ctx, key, value)
	return err
}

func (w *world) greeted() bool {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	reply, err := w.etcd().Get(ctx, "greeting")
	require.NoError(w.t, err)
	return len(reply.Kvs) == 1 && string(reply.Kvs[0].Value) == "hello"
}

// asked runs the program's other commands in a pod, as kubectl exec does.
func (w *world) asked(pod string, args ...string) string {
	w.t.Helper()
	out, err := w.node.Exec(w.pods()[pod], "etcd", append([]string{"/etcd-wrapper"}, args...)...)
	require.NoError(w.t, err, out)
	return out
}

// voters are the members that etcd itself counts.
func (w *world) voters() (names []string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	reply, err := w.etcd().MemberList(ctx)
	require.NoError(w.t, err)
	for _, member := range reply.Members {
		if !member.IsLearner {
			names = append(names, member.Name)
		}
	}
	return names
}

// writer writes without end and remembers what was acknowledged.
type writer struct {
	stop    context.CancelFunc
	ended   chan struct{}
	written []string
	longest time.Duration // between two acknowledgements
	failed  []string      // when and why a write was not acknowledged
}

func (w *world) startWriter() *writer {
	ctx, stop := context.WithCancel(context.Background())
	writes := &writer{stop: stop, ended: make(chan struct{})}
	client := w.etcd()
	go func() {
		defer close(writes.ended)
		last := time.Now()
		for i := 0; ctx.Err() == nil; i++ {
			key := fmt.Sprintf("written/%06d", i)
			began := time.Now()
			if err := tryPut(client, key, key, 5*time.Second); err != nil {
				writes.failed = append(writes.failed, fmt.Sprintf("%s, after %s: %v", began.UTC().Format("15:04:05.000"), time.Since(began).Round(time.Millisecond), err))
				continue
			}
			writes.written = append(writes.written, key)
			writes.longest, last = max(writes.longest, time.Since(last)), time.Now()
		}
	}()
	w.t.Cleanup(func() { stop(); <-writes.ended })
	return writes
}

// check ends the writing and looks whether all that was acknowledged is there.
func (w *world) check(writes *writer) {
	w.t.Helper()
	writes.stop()
	<-writes.ended
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	reply, err := w.etcd().Get(ctx, "written/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	require.NoError(w.t, err)
	there := map[string]bool{}
	for _, kv := range reply.Kvs {
		there[string(kv.Key)] = true
	}
	require.NotEmpty(w.t, writes.written)
	for _, key := range writes.written {
		require.True(w.t, there[key], "%s was acknowledged and is lost", key)
	}
	w.t.Logf("%d writes failed:\n%s", len(writes.failed), strings.Join(writes.failed[:min(len(writes.failed), 10)], "\n"))
	w.t.Logf("%d writes were acknowledged, all are there; the longest time between two was %s", len(writes.written), writes.longest.Round(time.Millisecond))
}

var errNotYet = errors.New("not yet")

// lines are what a container has logged so far.
func contains(text string, parts ...string) error {
	for _, part := range parts {
		if !strings.Contains(text, part) {
			return fmt.Errorf("%q: %w", part, errNotYet)
		}
	}
	return nil
}
