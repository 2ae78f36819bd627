package stories

import (
	"context"
	"fmt"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"etcd-wrapper/testdata/deploy/cluster"
)

// members returns the pods of the StatefulSet, keyed by name.
func (w *environment) members() (map[string]*corev1.Pod, error) {
	list, err := w.Client.CoreV1().Pods(w.namespace).List(context.Background(), metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/component=etcd-statefulset,app.kubernetes.io/part-of=" + w.release,
	})
	if err != nil {
		return nil, err
	}
	found := map[string]*corev1.Pod{}
	for i := range list.Items {
		found[list.Items[i].Name] = &list.Items[i]
	}
	return found, nil
}

func (w *environment) pods() map[string]*corev1.Pod {
	w.t.Helper()
	found, err := w.members()
	require.NoError(w.t, err)
	return found
}

// awaitPods waits until the StatefulSet has all of its pods.
func (w *environment) awaitPods() {
	w.t.Helper()
	cluster.Eventually(w.t, "the StatefulSet has all of its pods", func() error {
		set, err := w.Client.AppsV1().StatefulSets(w.namespace).Get(context.Background(), w.release, metav1.GetOptions{})
		if err != nil {
			return err
		}
		pods, err := w.members()
		if err == nil && len(pods) != int(*set.Spec.Replicas) {
			err = fmt.Errorf("%d of %d pods exist", len(pods), *set.Spec.Replicas)
		}
		return err
	})
}

// restarts returns the restart count of a member's first container, or -1 if the container has no status yet.
func (w *environment) restarts(member string) int {
	w.t.Helper()
	pod := w.pods()[member]
	if pod == nil || len(pod.Status.ContainerStatuses) == 0 {
		return -1
	}
	return int(pod.Status.ContainerStatuses[0].RestartCount)
}
