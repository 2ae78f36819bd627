package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	corev1 "k8s.io/api/core/v1"
)

// bundle writes what runc needs to run a container as its manifest says: user, read-only root, no capabilities, mounts,
// variables, arguments, and the pod's network.
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

// rootfs is a layer of its own over the image's files, where mount points can be made.
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

// files are those that a kubelet gives every container: names, the resolver's configuration, room for last words.
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
		// All are dropped, which the namespace's pod standard enforces.
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
