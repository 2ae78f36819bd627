package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// bundle writes the runc bundle for a container and returns its directory. The configuration follows the manifest:
// user, read-only root, capabilities, mounts, environment, arguments and pod network.
func (n *Node) bundle(ctx context.Context, pod *corev1.Pod, container *corev1.Container, folders map[string]string) (string, error) {
	image, err := n.imageOf(container)
	if err != nil {
		return "", err
	}
	variables, err := n.environment(ctx, pod, container)
	if err != nil {
		return "", err
	}
	folder := filepath.Join(n.podDir(pod), container.Name)
	if err := n.rootfs(image, folder); err != nil {
		return "", err
	}
	if err := n.files(pod, folder); err != nil {
		return "", err
	}
	spec := specs.Spec{
		Version: "1.0.2", Hostname: pod.Name,
		Root:    &specs.Root{Path: "rootfs", Readonly: *container.SecurityContext.ReadOnlyRootFilesystem},
		Process: process(pod, container, image, variables),
		Mounts:  append(system(folder, terminationPath(container)), mounts(container, folders)...),
		Linux: &specs.Linux{
			CgroupsPath: n.cgroup(pod, container),
			Resources:   limits(container),
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace},
				{Type: specs.IPCNamespace},
				{Type: specs.UTSNamespace},
				{Type: specs.MountNamespace},
				{Type: specs.NetworkNamespace, Path: "/run/netns/" + n.sandboxName(pod)},
			},
			MaskedPaths: []string{"/proc/kcore", "/proc/keys", "/proc/timer_list"}, ReadonlyPaths: []string{"/proc/sys", "/proc/bus"},
		},
	}
	text, err := json.Marshal(spec)
	if err != nil {
		return "", err
	}
	return folder, os.WriteFile(filepath.Join(folder, "config.json"), text, 0o600)
}

// rootfs mounts a writable layer over the image's files so that runc can create mount points.
func (n *Node) rootfs(image *Image, folder string) error {
	var err error
	for _, dir := range []string{"upper", "work", "rootfs"} {
		err = errors.Join(err, os.MkdirAll(filepath.Join(folder, dir), 0o755))
	}
	if err != nil {
		return err
	}
	return overlay(image.Root, folder)
}

// files writes the files that a kubelet provides to every container: /etc/hosts, /etc/resolv.conf and the termination
// log.
func (n *Node) files(pod *corev1.Pod, folder string) error {
	hosts := "127.0.0.1 localhost\n" + pod.Status.PodIP + " " + pod.Name + "\n"
	for _, alias := range pod.Spec.HostAliases {
		hosts += alias.IP + " " + strings.Join(alias.Hostnames, " ") + "\n"
	}
	names := fmt.Sprintf("search %s.svc.cluster.local svc.cluster.local cluster.local\nnameserver %s\noptions ndots:5\n", pod.Namespace, resolver)
	last := filepath.Join(folder, "termination-log")
	return errors.Join(os.WriteFile(filepath.Join(folder, "hosts"), []byte(hosts), 0o644),
		os.WriteFile(filepath.Join(folder, "resolv.conf"), []byte(names), 0o644),
		os.WriteFile(last, nil, 0o666), os.Chmod(last, 0o666))
}

func terminationPath(container *corev1.Container) string { return container.TerminationMessagePath }

func process(pod *corev1.Pod, container *corev1.Container, image *Image, variables map[string]string) *specs.Process {
	arguments := append([]string{}, image.Config.Entrypoint...)
	if len(container.Command) > 0 {
		arguments = append([]string{}, container.Command...)
	}
	for _, argument := range container.Args {
		arguments = append(arguments, expand(argument, variables))
	}
	environment := append([]string{"PATH=/bin"}, image.Config.Env...)
	for name, value := range variables {
		environment = append(environment, name+"="+value)
	}
	context := pod.Spec.SecurityContext
	return &specs.Process{
		Args: arguments, Env: environment, Cwd: "/",
		User: specs.User{UID: uint32(*context.RunAsUser), GID: uint32(*context.RunAsGroup), AdditionalGids: []uint32{uint32(*context.FSGroup)}},
		// The namespace's Pod Security Standard requires that containers drop all capabilities.
		Capabilities:    &specs.LinuxCapabilities{},
		NoNewPrivileges: !*container.SecurityContext.AllowPrivilegeEscalation,
	}
}

func system(folder, lastWords string) []specs.Mount {
	return []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc"},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777", "size=65536k"}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
		{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"nosuid", "noexec", "nodev", "relatime", "ro"}},
		bind(filepath.Join(folder, "hosts"), "/etc/hosts", false), bind(filepath.Join(folder, "resolv.conf"), "/etc/resolv.conf", false),
		bind(filepath.Join(folder, "termination-log"), lastWords, false),
	}
}

func mounts(container *corev1.Container, folders map[string]string) (all []specs.Mount) {
	for _, mount := range container.VolumeMounts {
		all = append(all, bind(filepath.Join(folders[mount.Name], mount.SubPath), mount.MountPath, mount.ReadOnly))
	}
	return all
}

func bind(source, destination string, readOnly bool) specs.Mount {
	options := []string{"rbind", "rprivate", "rw"}
	if readOnly {
		options[2] = "ro"
	}
	return specs.Mount{Destination: destination, Type: "bind", Source: source, Options: options}
}

func limits(container *corev1.Container) *specs.LinuxResources {
	resources := &specs.LinuxResources{}
	if limit, ok := container.Resources.Limits[corev1.ResourceMemory]; ok {
		bytes := limit.Value()
		resources.Memory = &specs.LinuxMemory{Limit: &bytes}
	}
	return resources
}

// apiServer is a host name in the API server's certificate. A real kubelet uses an IP address instead of a host name.
const apiServer = "kubernetes.default.svc"

// environment returns the container's environment variables: the API server's address, the variables from ConfigMaps
// and Secrets, and the manifest's own variables, with $(NAME) expanded.
func (n *Node) environment(ctx context.Context, pod *corev1.Pod, container *corev1.Container) (map[string]string, error) {
	all := map[string]string{"KUBERNETES_SERVICE_HOST": apiServer, "KUBERNETES_SERVICE_PORT": "443"}
	for _, source := range container.EnvFrom {
		if err := n.addAll(ctx, pod.Namespace, source, all); err != nil {
			return nil, err
		}
	}
	for _, variable := range container.Env {
		value, err := fieldOrText(pod, variable)
		if err != nil {
			return nil, err
		}
		all[variable.Name] = expand(value, all)
	}
	return all, nil
}

func (n *Node) addAll(ctx context.Context, namespace string, source corev1.EnvFromSource, to map[string]string) error {
	if source.ConfigMapRef != nil {
		found, err := n.client.CoreV1().ConfigMaps(namespace).Get(ctx, source.ConfigMapRef.Name, metav1.GetOptions{})
		if err != nil {
			return unlessOptional(err, source.ConfigMapRef.Optional)
		}
		for key, value := range found.Data {
			to[source.Prefix+key] = value
		}
	}
	if source.SecretRef != nil {
		found, err := n.client.CoreV1().Secrets(namespace).Get(ctx, source.SecretRef.Name, metav1.GetOptions{})
		if err != nil {
			return unlessOptional(err, source.SecretRef.Optional)
		}
		for key, value := range found.Data {
			to[source.Prefix+key] = string(value)
		}
	}
	return nil
}

func unlessOptional(err error, optional *bool) error {
	if optional != nil && *optional && apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func fieldOrText(pod *corev1.Pod, variable corev1.EnvVar) (string, error) {
	if variable.ValueFrom == nil {
		return variable.Value, nil
	}
	if variable.ValueFrom.FieldRef != nil {
		switch variable.ValueFrom.FieldRef.FieldPath {
		case "metadata.name":
			return pod.Name, nil
		case "metadata.namespace":
			return pod.Namespace, nil
		case "metadata.uid":
			return string(pod.UID), nil
		case "status.podIP":
			return pod.Status.PodIP, nil
		}
	}
	return "", fmt.Errorf("variable %s: unsupported valueFrom source", variable.Name)
}

var reference = regexp.MustCompile(`\$\$|\$\(([-._a-zA-Z][-._a-zA-Z0-9]*)\)`)

// expand expands $(NAME) as Kubernetes does: $$ becomes a dollar sign, and references to unknown variables are left
// alone.
func expand(text string, known map[string]string) string {
	return reference.ReplaceAllStringFunc(text, func(found string) string {
		if found == "$$" {
			return "$"
		}
		if value, ok := known[strings.Trim(found, "$()")]; ok {
			return value
		}
		return found
	})
}
