package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// provision makes a folder for every claim that has none, and leaves it to the controller to bind the two.
func (n *Node) provision(ctx context.Context) {
	claims, err := n.client.CoreV1().PersistentVolumeClaims(n.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return
	}
	for i := range claims.Items {
		claim := &claims.Items[i]
		if claim.Status.Phase == corev1.ClaimPending && claim.Spec.VolumeName == "" {
			if err := n.makeVolume(ctx, claim); err != nil && !apierrors.IsAlreadyExists(err) {
				n.log("no volume for %s: %v", claim.Name, err)
			}
		}
	}
}

func (n *Node) makeVolume(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	name := "pv-" + string(claim.UID)
	folder := filepath.Join(n.dir, "disks", name)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	if n.disks > 0 {
		if err := unix.Mount("tmpfs", folder, "tmpfs", 0, fmt.Sprintf("size=%d", n.disks)); err != nil {
			return err
		}
	}
	_, err := n.client.CoreV1().PersistentVolumes().Create(ctx, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: claim.Spec.Resources.Requests, AccessModes: claim.Spec.AccessModes, StorageClassName: class,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			ClaimRef:                      &corev1.ObjectReference{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID},
			PersistentVolumeSource:        corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: folder}},
		},
	}, metav1.CreateOptions{})
	return err
}

func (n *Node) removeDisks() {
	all, _ := filepath.Glob(filepath.Join(n.dir, "disks", "*"))
	for _, disk := range all {
		if n.disks > 0 {
			unmount(disk)
		}
	}
}

// bound is the folder of a claim.
func (n *Node) bound(ctx context.Context, namespace, name string) (string, error) {
	claim, err := n.client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	if claim.Status.Phase != corev1.ClaimBound {
		return "", fmt.Errorf("claim %s is %s", name, claim.Status.Phase)
	}
	volume, err := n.client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	return volume.Spec.HostPath.Path, nil
}
