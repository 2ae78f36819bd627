package stories

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"etcd-wrapper/testdata/deploy/cluster"
	"etcd-wrapper/testdata/deploy/node"
)

// An environment is a namespace in the cluster, together with the node that runs the namespace's pods.
type environment struct {
	*cluster.Cluster
	t         *testing.T
	node      *node.Node
	namespace string
	release   string      // name of the Helm release
	image     *node.Image // the members' image, which some tests replace

	identity *tls.Config // TLS configuration for clients; nil without TLS
}

// namespaces counts the namespaces that have been created. The number is part of a namespace's name.
var namespaces atomic.Int32

// newNamespace creates a namespace whose pods are not run. The test runs in parallel with the other tests.
func newNamespace(t *testing.T) *environment {
	t.Helper()
	t.Parallel()
	w := &environment{Cluster: shared, t: t, namespace: fmt.Sprintf("test-%d", namespaces.Add(1)), release: "etcd-main", image: wrapper}
	w.restricted()
	return w
}

// newEnvironment creates a namespace and runs its pods, which requires root.
func newEnvironment(t *testing.T, options ...node.Option) *environment {
	t.Helper()
	needsRoot(t)
	w := newNamespace(t)
	w.run(options...)
	return w
}

func needsRoot(t *testing.T) {
	t.Helper()
	if !node.Root() {
		t.Skip("SKIPPED: pods run in network namespaces, which only root can create")
	}
}

// run starts the node that runs the pods.
func (w *environment) run(options ...node.Option) {
	w.t.Helper()
	images := map[string]*node.Image{"etcd-wrapper": w.image, sidecarImage: scriptedSidecar(w.t)}
	w.node = machines.Start(w.t, w.namespace, cluster.Tool("runc"), images, options...)
	w.node.Forward(w.t, "443", strings.TrimPrefix(w.Config.Host, "https://"))
}

// restricted creates the namespace with the "restricted" Pod Security Standard.
func (w *environment) restricted() {
	w.t.Helper()
	_, err := w.Client.CoreV1().Namespaces().Create(w.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: w.namespace, Labels: map[string]string{
			"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/enforce-version": "latest",
			"pod-security.kubernetes.io/warn": "restricted",
		},
	}}, metav1.CreateOptions{})
	require.NoError(w.t, err)
	w.t.Cleanup(w.end)
}

// end deletes the namespace without waiting.
func (w *environment) end() {
	err := w.Client.CoreV1().Namespaces().Delete(context.Background(), w.namespace, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		w.t.Errorf("namespace %s stays: %v", w.namespace, err)
	}
}

// awaitReady waits until the StatefulSet reports that all pods of its latest revision are ready.
func (w *environment) awaitReady(count int) {
	w.t.Helper()
	cluster.Eventually(w.t, fmt.Sprintf("%d members are ready", count), func() error {
		set, err := w.Client.AppsV1().StatefulSets(w.namespace).Get(context.Background(), w.release, metav1.GetOptions{})
		if err != nil {
			return err
		}
		s := set.Status
		if s.ObservedGeneration != set.Generation || int(s.ReadyReplicas) != count || int(s.UpdatedReplicas) != count || int(s.Replicas) != count {
			return fmt.Errorf("%d pods: %d ready, %d updated", s.Replicas, s.ReadyReplicas, s.UpdatedReplicas)
		}
		return nil
	})
}

// etcd returns a client that connects to the client Service as a client in another pod would.
func (w *environment) etcd() *clientv3.Client {
	w.t.Helper()
	scheme := "http"
	if w.identity != nil {
		scheme = "https"
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{scheme + "://" + w.release + "-client:2379"}, TLS: w.identity, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return w.node.Dial(ctx, w.namespace, address)
		})},
	})
	require.NoError(w.t, err)
	w.t.Cleanup(func() { _ = client.Close() })
	return client
}

// greet writes the key "greeting", so that greeted can check later whether it has been preserved.
func (w *environment) greet() {
	w.t.Helper()
	client := w.etcd()
	cluster.Eventually(w.t, "a write is acknowledged", func() error { return tryPut(client, "greeting", "hello", 10*time.Second) })
}

func tryPut(client *clientv3.Client, key, value string, within time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	_, err := client.Put(ctx, key, value)
	return err
}

func (w *environment) greeted() bool {
	w.t.Helper()
	reply := w.get("greeting")
	return len(reply.Kvs) == 1 && string(reply.Kvs[0].Value) == "hello"
}

// get performs a linearizable read, and retries it until it succeeds, for example until there is a quorum.
func (w *environment) get(key string, options ...clientv3.OpOption) (reply *clientv3.GetResponse) {
	w.t.Helper()
	client := w.etcd()
	cluster.Eventually(w.t, key+" is read", func() (err error) {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		reply, err = client.Get(ctx, key, options...)
		return err
	})
	return reply
}

// exec runs a command of etcd-wrapper in a pod, as kubectl exec does, and returns its output.
func (w *environment) exec(pod string, args ...string) string {
	w.t.Helper()
	out, err := w.tryExec(pod, args...)
	require.NoError(w.t, err)
	return out
}

// tryExec is like exec, but for commands that may fail.
func (w *environment) tryExec(pod string, args ...string) (string, error) {
	found := w.pods()[pod]
	if found == nil {
		return "", fmt.Errorf("pod %s not found: %w", pod, errNotYet)
	}
	return w.node.Exec(found, "etcd", append([]string{"/etcd-wrapper"}, args...)...)
}

// voters returns the names of the voting members.
func (w *environment) voters() (names []string) {
	w.t.Helper()
	client := w.etcd()
	var reply *clientv3.MemberListResponse
	cluster.Eventually(w.t, "members are listed", func() (err error) {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		reply, err = client.MemberList(ctx)
		return err
	})
	for _, member := range reply.Members {
		if !member.IsLearner {
			names = append(names, member.Name)
		}
	}
	return names
}

var errNotYet = errors.New("not yet")

// contains returns nil if the text contains all parts, and otherwise an error with the first missing part.
func contains(text string, parts ...string) error {
	for _, part := range parts {
		if !strings.Contains(text, part) {
			return fmt.Errorf("the text does not contain %q: %w", part, errNotYet)
		}
	}
	return nil
}
