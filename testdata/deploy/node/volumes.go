package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// provision creates a PersistentVolume for each claim that has none. A controller then binds the volume to the claim.
func (n *Node) provision(ctx context.Context) {
	claims, err := n.client.CoreV1().PersistentVolumeClaims(n.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return
	}
	for i := range claims.Items {
		claim := &claims.Items[i]
		if claim.Status.Phase == corev1.ClaimPending && claim.Spec.VolumeName == "" {
			if err := n.makeVolume(ctx, claim); err != nil && !apierrors.IsAlreadyExists(err) {
				n.log("cannot create a volume for claim %s: %v", claim.Name, err)
			}
		}
	}
}

func (n *Node) makeVolume(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	name := "pv-" + string(claim.UID)
	folder := filepath.Join(n.dir, "disks", name)
	if err := n.makeDisk(folder); err != nil {
		return err
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

// makeDisk creates a volume's directory. It may be called repeatedly before a claim is bound, but only the first call
// mounts a file system.
func (n *Node) makeDisk(folder string) error {
	if err := os.MkdirAll(filepath.Dir(folder), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(folder, 0o755); os.IsExist(err) {
		return nil
	} else if err != nil || n.disks == 0 {
		return err
	}
	return unix.Mount("tmpfs", folder, "tmpfs", 0, fmt.Sprintf("size=%d", n.disks))
}

func (n *Node) removeDisks() {
	all, _ := filepath.Glob(filepath.Join(n.dir, "disks", "*"))
	for _, disk := range all {
		if n.disks > 0 {
			unmount(disk)
		}
	}
}

// bound returns the directory of the volume that is bound to a claim.
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

// mount creates or updates a volume and returns the directory to mount. If an object is missing, the error names it.
func (n *Node) mount(ctx context.Context, pod *corev1.Pod, volume *corev1.Volume) (folder string, err error) {
	folder = filepath.Join(n.podDir(pod), "volumes", volume.Name)
	if claim := volume.PersistentVolumeClaim; claim != nil {
		folder, err = n.bound(ctx, pod.Namespace, claim.ClaimName)
		if err != nil {
			return "", err
		}
		return folder, n.own(pod, folder, 0o2775)
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", err
	}
	if volume.EmptyDir != nil {
		return folder, n.own(pod, folder, 0o2777)
	}
	files, mode, err := n.content(ctx, pod, volume)
	if err != nil {
		return "", err
	}
	return folder, n.publish(pod, folder, files, mode)
}

// content returns the files of a ConfigMap, a Secret or a projected volume.
func (n *Node) content(ctx context.Context, pod *corev1.Pod, volume *corev1.Volume) (files map[string][]byte, mode int32, err error) {
	switch {
	case volume.ConfigMap != nil:
		files, err = n.configMap(ctx, pod.Namespace, volume.ConfigMap.Name, volume.ConfigMap.Items)
		return files, *volume.ConfigMap.DefaultMode, err
	case volume.Secret != nil:
		found, err := n.client.CoreV1().Secrets(pod.Namespace).Get(ctx, volume.Secret.SecretName, metav1.GetOptions{})
		if err != nil {
			return map[string][]byte{}, *volume.Secret.DefaultMode, unlessOptional(err, volume.Secret.Optional)
		}
		return chosen(found.Data, volume.Secret.Items), *volume.Secret.DefaultMode, nil
	case volume.Projected != nil:
		files, err = n.projected(ctx, pod, volume.Projected.Sources)
		return files, *volume.Projected.DefaultMode, err
	}
	return nil, 0, fmt.Errorf("volume %s: unsupported volume type", volume.Name)
}

func (n *Node) configMap(ctx context.Context, namespace, name string, items []corev1.KeyToPath) (map[string][]byte, error) {
	found, err := n.client.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	for key, text := range found.Data {
		files[key] = []byte(text)
	}
	return chosen(files, items), nil
}

func chosen(files map[string][]byte, items []corev1.KeyToPath) map[string][]byte {
	if len(items) == 0 {
		return files
	}
	found := map[string][]byte{}
	for _, item := range items {
		found[item.Path] = files[item.Key]
	}
	return found
}

// projected returns a service account's token, CA and namespace.
func (n *Node) projected(ctx context.Context, pod *corev1.Pod, sources []corev1.VolumeProjection) (map[string][]byte, error) {
	files := map[string][]byte{}
	for _, source := range sources {
		switch {
		case source.ServiceAccountToken != nil:
			reply, err := n.client.CoreV1().ServiceAccounts(pod.Namespace).CreateToken(ctx, pod.Spec.ServiceAccountName, &authenticationv1.TokenRequest{
				Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: source.ServiceAccountToken.ExpirationSeconds, BoundObjectRef: &authenticationv1.BoundObjectReference{
					Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID,
				}},
			}, metav1.CreateOptions{})
			if err != nil {
				return nil, err
			}
			files[source.ServiceAccountToken.Path] = []byte(reply.Status.Token)
		case source.ConfigMap != nil:
			found, err := n.configMap(ctx, pod.Namespace, source.ConfigMap.Name, source.ConfigMap.Items)
			if err != nil {
				return nil, err
			}
			for name, content := range found {
				files[name] = content
			}
		case source.DownwardAPI != nil:
			files["namespace"] = []byte(pod.Namespace)
		}
	}
	return files, nil
}

// publish replaces files atomically, as the kubelet does: each name is a symbolic link through ..data, which itself
// links to the directory with the latest content.
func (n *Node) publish(pod *corev1.Pod, folder string, files map[string][]byte, mode int32) error {
	if same(filepath.Join(folder, "..data"), files) {
		return nil
	}
	latest, err := os.MkdirTemp(folder, "..")
	if err != nil {
		return err
	}
	for name, content := range files {
		path := filepath.Join(latest, name)
		err = errors.Join(err, os.WriteFile(path, content, 0o600), os.Chmod(path, os.FileMode(mode)|0o040), os.Chown(path, 0, n.group(pod)))
	}
	if err = errors.Join(err, os.Chmod(latest, 0o755)); err != nil {
		return err
	}
	for name := range files {
		if err := os.Symlink(filepath.Join("..data", name), filepath.Join(folder, name)); err != nil && !os.IsExist(err) {
			return err
		}
	}
	previous, _ := os.Readlink(filepath.Join(folder, "..data")) // does not exist on the first call
	next := filepath.Join(folder, "..data_tmp")
	if err := os.Symlink(filepath.Base(latest), next); err != nil {
		return err
	}
	if err := os.Rename(next, filepath.Join(folder, "..data")); err != nil || previous == "" {
		return err
	}
	return os.RemoveAll(filepath.Join(folder, previous))
}

func same(folder string, files map[string][]byte) bool {
	entries, err := os.ReadDir(folder)
	if err != nil || len(entries) != len(files) {
		return false
	}
	for name, content := range files {
		if found, err := os.ReadFile(filepath.Join(folder, name)); err != nil || string(found) != string(content) {
			return false
		}
	}
	return true
}

// own grants the pod's group access to a directory.
func (n *Node) own(pod *corev1.Pod, folder string, mode uint32) error {
	if err := os.Chown(folder, 0, n.group(pod)); err != nil {
		return err
	}
	return os.Chmod(folder, os.FileMode(mode&0o777)|os.ModeSetgid)
}

func (n *Node) group(pod *corev1.Pod) int {
	if pod.Spec.SecurityContext == nil || pod.Spec.SecurityContext.FSGroup == nil {
		return 0
	}
	return int(*pod.Spec.SecurityContext.FSGroup)
}
