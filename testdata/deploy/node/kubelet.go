package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"
)

// Timeouts of kubectl streams, with the kubelet's defaults.
const (
	idle     = 4 * time.Hour
	creation = 30 * time.Second
)

// listen serves the kubelet API for kubectl exec and kubectl port-forward until the process exits, and returns the
// address.
func (m *Machines) listen() (address string) {
	mux := http.NewServeMux()
	mux.HandleFunc("/exec/{namespace}/{pod}/{container}", m.serveExec)
	mux.HandleFunc("/portForward/{namespace}/{pod}", m.servePorts)
	return httptest.NewTLSServer(mux).Listener.Addr().String()
}

func (m *Machines) serveExec(w http.ResponseWriter, r *http.Request) {
	n, err := m.of(r.PathValue("namespace"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	options, err := remotecommand.NewOptions(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	remotecommand.ServeExec(w, r, n, r.PathValue("pod"), "", r.PathValue("container"), r.Form["command"], options, idle, creation,
		remotecommand.SupportedStreamingProtocols)
}

func (m *Machines) servePorts(w http.ResponseWriter, r *http.Request) {
	n, err := m.of(r.PathValue("namespace"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	options, err := portforward.NewV4Options(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	portforward.ServePortForward(w, r, n, r.PathValue("pod"), "", options, idle, creation, portforward.SupportedProtocols)
}

// ExecInContainer implements remotecommand.Executor by running a command in a container. Terminals are not supported.
func (n *Node) ExecInContainer(ctx context.Context, pod, _, container string, args []string, in io.Reader, out, stderr io.WriteCloser,
	terminal bool, _ <-chan remotecommand.TerminalSize, _ time.Duration,
) error {
	if terminal {
		return errors.New("terminals are not supported")
	}
	found, err := n.named(pod)
	if err != nil {
		return err
	}
	command := n.inContainer(ctx, found, container, args)
	command.Stdout, command.Stderr = out, stderr
	if in != nil {
		// If command.Stdin were set, Wait would wait for the end of the input as well.
		typed, err := command.StdinPipe()
		if err != nil {
			return err
		}
		go func() {
			_, _ = io.Copy(typed, in) // the command may exit without reading its input
			_ = typed.Close()
		}()
	}
	err = command.Run()
	var exited *exec.ExitError
	if errors.As(err, &exited) {
		return utilexec.CodeExitError{Err: err, Code: exited.ExitCode()}
	}
	return err
}

func (n *Node) inContainer(ctx context.Context, pod *corev1.Pod, container string, args []string) *exec.Cmd {
	return exec.CommandContext(ctx, n.runc, append([]string{"--root", n.State(), "exec", string(pod.UID) + "-" + container}, args...)...)
}

// PortForward implements portforward.PortForwarder by connecting a stream to a port in a pod's network.
func (n *Node) PortForward(_ context.Context, pod, _ string, port int32, stream io.ReadWriteCloser) error {
	found, err := n.named(pod)
	if err != nil {
		return err
	}
	return connect(n.sandboxName(found), "127.0.0.1:"+strconv.Itoa(int(port)), stream)
}

// Exec runs a command in a container and returns its output. The error contains the command's standard error.
func (n *Node) Exec(pod *corev1.Pod, container string, args ...string) (string, error) {
	var out, stderr strings.Builder
	command := n.inContainer(context.Background(), pod, container, args)
	command.Stdout, command.Stderr = &out, &stderr
	if err := command.Run(); err != nil {
		return out.String(), fmt.Errorf("%s: %w: %s%s", strings.Join(args, " "), err, out.String(), stderr.String())
	}
	return out.String(), nil
}

// Kill kills a container with SIGKILL, like the kernel's OOM killer.
func (n *Node) Kill(pod *corev1.Pod, container string) error {
	return exec.Command(n.runc, "--root", n.State(), "kill", string(pod.UID)+"-"+container, "KILL").Run()
}

// Cut disconnects a pod from the network until Mend is called. Until then, its probes fail as well.
func (n *Node) Cut(pod *corev1.Pod) error {
	return n.network.wire(pod.Status.PodIP, netlink.LinkSetDown)
}

// Mend reconnects a pod to the network.
func (n *Node) Mend(pod *corev1.Pod) error {
	return n.network.wire(pod.Status.PodIP, netlink.LinkSetUp)
}

// Disk returns the directory of the volume that is bound to a pod's claim.
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
		t.Logf("last lines of %s:\n%s", filepath.Base(file), strings.Join(lines[max(0, len(lines)-15):], "\n"))
	}
}
