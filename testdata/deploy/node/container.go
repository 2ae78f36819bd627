package node

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Backoff between container restarts. The kubelet's backoff of 10 s to 5 min would be too long for tests.
const (
	firstBackoff = time.Second
	lastBackoff  = 10 * time.Second
)

// container runs a container and restarts it for as long as the pod exists.
type container struct {
	node *Node
	pod  *corev1.Pod
	spec *corev1.Container
	id   string

	mu     sync.Mutex
	status corev1.ContainerStatus
}

// keep runs the container and restarts it until ctx is done. If the container belongs to a Job, keep runs it only
// once.
func (c *container) keep(ctx context.Context, folders map[string]string) {
	for wait := firstBackoff; ; wait = min(2*wait, lastBackoff) {
		began := time.Now()
		state := c.once(ctx, folders)
		again := c.pod.Spec.RestartPolicy == corev1.RestartPolicyAlways
		c.settle(state, again)
		if ctx.Err() != nil || !again {
			return
		}
		if time.Since(began) > time.Minute {
			wait = firstBackoff
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// once runs the container until it exits, and returns its final state.
func (c *container) once(ctx context.Context, folders map[string]string) *corev1.ContainerStateTerminated {
	began := metav1.Now()
	ended := &corev1.ContainerStateTerminated{StartedAt: began, ExitCode: 128, Reason: "StartError"}
	folder, err := c.node.bundle(ctx, c.pod, c.spec, folders)
	if err != nil {
		ended.Message, ended.FinishedAt = err.Error(), metav1.Now()
		c.node.log("cannot start container %s of pod %s: %v", c.spec.Name, c.pod.Name, err)
		return ended
	}
	defer unmount(filepath.Join(folder, "rootfs"))
	log, err := os.OpenFile(c.node.LogFile(c.pod.Namespace, c.pod.Name, c.spec.Name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		ended.Message = err.Error()
		return ended
	}
	defer log.Close()
	command := exec.Command(c.node.runc, "--root", c.node.State(), "run", "--bundle", folder, c.id)
	command.Stdout, command.Stderr = log, log
	if err := command.Start(); err != nil {
		ended.Message = err.Error()
		return ended
	}
	c.began(began)
	probing, stop := context.WithCancel(ctx)
	var probes sync.WaitGroup
	c.probe(probing, &probes)
	err = command.Wait()
	stop()
	probes.Wait()
	return c.last(ended, err, folder)
}

// last reads the container's exit status and termination message, and deletes the container.
func (c *container) last(ended *corev1.ContainerStateTerminated, err error, folder string) *corev1.ContainerStateTerminated {
	var exited *exec.ExitError
	ended.ExitCode, ended.Reason, ended.FinishedAt = 0, "Completed", metav1.Now()
	if errors.As(err, &exited) {
		ended.ExitCode, ended.Reason = int32(exited.ExitCode()), "Error"
	}
	words, _ := os.ReadFile(filepath.Join(folder, "termination-log")) // the file may not exist
	ended.Message = string(bytes.TrimSpace(words))
	_ = exec.Command(c.node.runc, "--root", c.node.State(), "delete", "--force", c.id).Run() // the container may no longer exist
	return ended
}

func (c *container) began(at metav1.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	started := true
	c.status.State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: at}}
	c.status.Started, c.status.Ready = &started, c.spec.ReadinessProbe == nil
	c.status.ContainerID = "runc://" + c.id
}

func (c *container) settle(ended *corev1.ContainerStateTerminated, again bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.status.State = corev1.ContainerState{Terminated: ended}
	c.status.Ready = false
	if again {
		c.status.LastTerminationState = corev1.ContainerState{Terminated: ended}
		c.status.RestartCount++
	}
}

func (c *container) setReady(ready bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.status.Ready = ready && c.status.State.Running != nil
}

func (c *container) current() corev1.ContainerStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	return *c.status.DeepCopy()
}

func (c *container) signal(name string) {
	_ = exec.Command(c.node.runc, "--root", c.node.State(), "kill", c.id, name).Run() // the container may have exited
}

// stop sends SIGTERM, followed by SIGKILL after the grace period, and returns when ended is closed.
func (c *container) stop(grace time.Duration, ended <-chan struct{}) {
	if grace > 0 {
		c.signal("TERM")
	}
	select {
	case <-ended:
	case <-time.After(grace):
		if grace > 0 {
			c.node.log("container %s/%s did not exit within %s", c.pod.Name, c.spec.Name, grace)
		}
		c.signal("KILL")
		<-ended
	}
}

func overlay(lower, folder string) error {
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", lower, filepath.Join(folder, "upper"), filepath.Join(folder, "work"))
	return unix.Mount("overlay", filepath.Join(folder, "rootfs"), "overlay", 0, options)
}

func unmount(folder string) { _ = unix.Unmount(folder, unix.MNT_DETACH) }

// probe starts the container's probes, which run until ctx is done.
func (c *container) probe(ctx context.Context, running *sync.WaitGroup) {
	if probe := c.spec.ReadinessProbe; probe != nil {
		running.Go(func() { c.ask(ctx, probe, c.setReady) })
	}
	if probe := c.spec.LivenessProbe; probe != nil {
		running.Go(func() {
			c.ask(ctx, probe, func(alive bool) {
				if !alive {
					c.node.log("container %s/%s failed its liveness probe", c.pod.Name, c.spec.Name)
					c.signal("KILL")
				}
			})
		})
	}
}

// ask runs the probe at its configured interval, and calls report when a success or failure threshold is reached.
func (c *container) ask(ctx context.Context, probe *corev1.Probe, report func(bool)) {
	client := c.node.prober(time.Duration(probe.TimeoutSeconds) * time.Second)
	wait := time.Duration(probe.InitialDelaySeconds) * time.Second
	successes, failures := int32(0), int32(0)
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		wait = time.Duration(probe.PeriodSeconds) * time.Second
		if c.answers(ctx, client, probe.HTTPGet) {
			successes, failures = successes+1, 0
		} else {
			successes, failures = 0, failures+1
		}
		if successes == probe.SuccessThreshold {
			report(true)
		} else if failures == probe.FailureThreshold && ctx.Err() == nil {
			report(false)
		}
	}
}

func (c *container) answers(ctx context.Context, client *http.Client, probe *corev1.HTTPGetAction) bool {
	url := fmt.Sprintf("%s://%s:%d%s", map[corev1.URIScheme]string{corev1.URISchemeHTTPS: "https"}[probe.Scheme], c.pod.Status.PodIP, c.port(probe.Port), probe.Path)
	if probe.Scheme != corev1.URISchemeHTTPS {
		url = "http" + url
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	reply, err := client.Do(request)
	if err != nil {
		return false
	}
	_ = reply.Body.Close()
	return reply.StatusCode >= 200 && reply.StatusCode < 400
}

func (c *container) port(wanted intstr.IntOrString) int {
	for _, port := range c.spec.Ports {
		if port.Name == wanted.StrVal {
			return int(port.ContainerPort)
		}
	}
	number, _ := strconv.Atoi(wanted.String())
	return number
}

// prober returns an HTTP client that, like the kubelet, does not verify certificates.
func (n *Node) prober(timeout time.Duration) *http.Client {
	return &http.Client{Timeout: timeout, Transport: &http.Transport{
		DialContext: n.network.dial, DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}}
}
