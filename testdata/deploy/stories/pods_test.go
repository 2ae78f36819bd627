package stories

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"etcd-wrapper/testdata/deploy/cluster"
)

// members are the pods of the StatefulSet, by name.
func members(c *cluster.Cluster, namespace string) (map[string]*corev1.Pod, error) {
	list, err := c.Client.CoreV1().Pods(namespace).List(context.Background(), metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/component=etcd-statefulset",
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

// havePods says whether there are as many pods as the StatefulSet wants.
func havePods(c *cluster.Cluster, namespace string) error {
	set, err := c.Client.AppsV1().StatefulSets(namespace).Get(context.Background(), "etcd-main", metav1.GetOptions{})
	if err != nil {
		return err
	}
	pods, err := members(c, namespace)
	if err == nil && len(pods) != int(*set.Spec.Replicas) {
		err = fmt.Errorf("there are %d pods, not %d", len(pods), *set.Spec.Replicas)
	}
	return err
}
