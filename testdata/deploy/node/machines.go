package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

const class = "folders"

// Machines manages the cluster's Node objects, their StorageClass, and the kubelet API that all nodes share. A Node
// returned by Start serves the requests for the pods in its namespace.
type Machines struct {
	client  kubernetes.Interface
	kubelet int32 // port of the kubelet API

	mu    sync.Mutex
	nodes map[string]*Node // nodes by namespace
}

// Register creates three machines in three zones, and a StorageClass. Register must be called once per cluster.
func Register(ctx context.Context, client kubernetes.Interface) (*Machines, error) {
	m := &Machines{client: client, nodes: map[string]*Node{}}
	_, port, err := net.SplitHostPort(m.listen())
	if err != nil {
		return nil, err
	}
	number, err := strconv.ParseInt(port, 10, 32)
	if err != nil {
		return nil, err
	}
	m.kubelet = int32(number)
	return m, errors.Join(m.offerStorage(ctx), m.Offer(ctx, "node", 3))
}

// offerStorage creates the cluster's default StorageClass.
func (m *Machines) offerStorage(ctx context.Context) error {
	immediately, grows := storagev1.VolumeBindingImmediate, true
	_, err := m.client.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{
		ObjectMeta:  metav1.ObjectMeta{Name: class, Annotations: map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}},
		Provisioner: "test.invalid/" + class, VolumeBindingMode: &immediately, AllowVolumeExpansion: &grows,
	}, metav1.CreateOptions{})
	return err
}

// Offer adds count machines named NAME-0, NAME-1 and so on, each in a different zone and with the given taints.
func (m *Machines) Offer(ctx context.Context, name string, count int, taints ...corev1.Taint) (err error) {
	for i := range count {
		err = errors.Join(err, m.offerOne(ctx, name, i, taints))
	}
	return err
}

func (m *Machines) offerOne(ctx context.Context, kind string, number int, taints []corev1.Taint) error {
	name := fmt.Sprintf("%s-%d", kind, number)
	nodes := m.client.CoreV1().Nodes()
	node, err := nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
		"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": fmt.Sprintf("zone-%d", number), "kind": kind,
	}}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	room := corev1.ResourceList{
		"cpu": resource.MustParse("64"), "memory": resource.MustParse("256Gi"), "pods": resource.MustParse("200"), "ephemeral-storage": resource.MustParse("100Gi"),
	}
	node.Status.Capacity, node.Status.Allocatable = room, room
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = m.kubelet
	node.Status.Conditions = []corev1.NodeCondition{ready(corev1.ConditionTrue)}
	if node, err = nodes.UpdateStatus(ctx, node, metav1.UpdateOptions{}); err != nil {
		return err
	}
	node.Spec.Taints = taints // the API server may add an initial taint, which no controller here would remove
	_, err = nodes.Update(ctx, node, metav1.UpdateOptions{})
	return err
}

func ready(status corev1.ConditionStatus) corev1.NodeCondition {
	return corev1.NodeCondition{Type: corev1.NodeReady, Status: status, LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()}
}

// add registers a node, which then receives the requests for its namespace.
func (m *Machines) add(n *Node) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.nodes[n.namespace] = n
}

func (m *Machines) of(namespace string) (*Node, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n, ok := m.nodes[namespace]; ok {
		return n, nil
	}
	return nil, fmt.Errorf("no node runs the pods of namespace %s", namespace)
}

// Lose permanently switches off a machine: its containers exit, and it stops reporting to the API server. Because the
// node controllers are not running here, Lose also does their work: it marks the node as unreachable and deletes its
// pods.
func (n *Node) Lose(ctx context.Context, machine string) error {
	n.mu.Lock()
	n.lost[machine] = true
	var pods []*corev1.Pod
	for _, pod := range n.pods {
		if pod.Spec.NodeName == machine {
			pods = append(pods, pod)
		}
	}
	n.mu.Unlock()
	nodes := n.client.CoreV1().Nodes()
	found, err := nodes.Get(ctx, machine, metav1.GetOptions{})
	if err != nil {
		return err
	}
	found.Status.Conditions = []corev1.NodeCondition{ready(corev1.ConditionUnknown)}
	if found, err = nodes.UpdateStatus(ctx, found, metav1.UpdateOptions{}); err != nil {
		return err
	}
	for _, effect := range []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute} {
		found.Spec.Taints = append(found.Spec.Taints, corev1.Taint{Key: corev1.TaintNodeUnreachable, Effect: effect})
	}
	_, err = nodes.Update(ctx, found, metav1.UpdateOptions{})
	for _, pod := range pods {
		err = errors.Join(err, n.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{}))
	}
	return err
}

// off reports whether a pod's machine has been switched off.
func (n *Node) off(pod *corev1.Pod) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.lost[pod.Spec.NodeName]
}
