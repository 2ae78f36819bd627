package node

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
)

// Exec runs a command in a container, as kubectl exec does, and returns what it prints. The error has what it says of its trouble.
func (n *Node) Exec(pod *corev1.Pod, container string, args ...string) (string, error) {
	var out, trouble strings.Builder
	command := exec.Command(n.runc, append([]string{"--root", n.State(), "exec", string(pod.UID) + "-" + container}, args...)...)
	command.Stdout, command.Stderr = &out, &trouble
	if err := command.Run(); err != nil {
		return out.String(), fmt.Errorf("%s: %w: %s%s", strings.Join(args, " "), err, out.String(), trouble.String())
	}
	return out.String(), nil
}

// Kill ends a container at once, as the kernel does with one that takes too much memory.
func (n *Node) Kill(pod *corev1.Pod, container string) error {
	return exec.Command(n.runc, "--root", n.State(), "kill", string(pod.UID)+"-"+container, "KILL").Run()
}

// Cut takes a pod off the network, until Mend. Its probes fail, too.
func (n *Node) Cut(pod *corev1.Pod) error {
	return n.network.wire(pod.Status.PodIP, netlink.LinkSetDown)
}

// Mend puts a pod back on the network.
func (n *Node) Mend(pod *corev1.Pod) error {
	return n.network.wire(pod.Status.PodIP, netlink.LinkSetUp)
}

// Disk is the folder of a volume that a pod claims.
func (n *Node) Disk(t testing.TB, pod *corev1.Pod, claim string) string {
	folder, err := n.bound(t.Context(), pod.Namespace, claim)
	if err != nil {
		t.Fatal(err)
	}
	return folder
}

func (n *Node) showLogs(t testing.TB) {
	files, _ := filepath.Glob(filepath.Join(n.dir, "logs", "*"))
	for _, file := range files {
		content, _ := os.ReadFile(file)
		lines := strings.Split(strings.TrimSpace(string(content)), "\n")
		t.Logf("the end of %s:\n%s", filepath.Base(file), strings.Join(lines[max(0, len(lines)-15):], "\n"))
	}
}
