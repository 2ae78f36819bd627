package node

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

const class = "folders"

// Register tells a cluster of three machines in three zones, and of a class of volumes. It is called once per cluster.
func Register(ctx context.Context, client kubernetes.Interface) error {
	err := offerStorage(ctx, client)
	for i := range 3 {
		err = errors.Join(err, offerNode(ctx, client, i))
	}
	return err
}

// offerStorage makes a class of volumes the cluster's default.
func offerStorage(ctx context.Context, client kubernetes.Interface) error {
	immediately, grows := storagev1.VolumeBindingImmediate, true
	_, err := client.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{
		ObjectMeta:  metav1.ObjectMeta{Name: class, Annotations: map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}},
		Provisioner: "test.invalid/" + class, VolumeBindingMode: &immediately, AllowVolumeExpansion: &grows,
	}, metav1.CreateOptions{})
	return err
}

func offerNode(ctx context.Context, client kubernetes.Interface, number int) error {
	name := fmt.Sprintf("node-%d", number)
	nodes := client.CoreV1().Nodes()
	made, err := nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: map[string]string{"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": fmt.Sprintf("zone-%d", number)},
	}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	room := corev1.ResourceList{
		"cpu": resource.MustParse("64"), "memory": resource.MustParse("256Gi"), "pods": resource.MustParse("200"), "ephemeral-storage": resource.MustParse("100Gi"),
	}
	made.Status.Capacity, made.Status.Allocatable = room, room
	made.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()}}
	if made, err = nodes.UpdateStatus(ctx, made, metav1.UpdateOptions{}); err != nil {
		return err
	}
	made.Spec.Taints = nil // a controller that is not run here would do that
	_, err = nodes.Update(ctx, made, metav1.UpdateOptions{})
	return err
}
