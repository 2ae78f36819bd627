package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// work runs a pod until it is deleted, and returns once its resources have been removed. ctx is the node's context.
func (n *Node) work(ctx context.Context, pod *corev1.Pod) {
	wanted, unwanted := context.WithCancel(ctx)
	defer unwanted()
	folders, ok := n.prepare(wanted, pod)
	if !ok {
		n.finish(pod)
		return
	}
	containers := n.containersOf(pod)
	var running sync.WaitGroup
	for _, c := range containers {
		running.Go(func() {
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				c.keep(wanted, folders)
			}()
			<-wanted.Done()
			c.stop(n.graceOf(ctx, pod), ended)
		})
	}
	for n.wanted(wanted, pod) {
		n.refresh(wanted, pod)
		n.report(wanted, pod, containers)
		sleep(wanted, tick)
	}
	unwanted()
	running.Wait()
	if !n.off(pod) {
		n.report(context.WithoutCancel(ctx), pod, containers)
	}
	n.finish(pod)
}

// prepare waits until all volumes of the pod are available, and then connects the pod to the network. It returns
// false if the pod is deleted in the meantime.
func (n *Node) prepare(ctx context.Context, pod *corev1.Pod) (folders map[string]string, ok bool) {
	for last := ""; n.wanted(ctx, pod); sleep(ctx, tick) {
		var err error
		if folders, err = n.mountAll(ctx, pod); err == nil {
			break
		}
		if err.Error() != last {
			last = err.Error()
			n.log("pod %s is waiting: %v", pod.Name, err)
		}
	}
	ip, err := n.network.sandbox(n.sandboxName(pod))
	if err != nil {
		n.log("cannot set up the network of pod %s: %v", pod.Name, err)
		return nil, false
	}
	now := metav1.Now()
	pod.Status.PodIP, pod.Status.PodIPs, pod.Status.StartTime = ip, []corev1.PodIP{{IP: ip}}, &now
	return folders, n.wanted(ctx, pod)
}

func (n *Node) mountAll(ctx context.Context, pod *corev1.Pod) (map[string]string, error) {
	folders := map[string]string{}
	for i := range pod.Spec.Volumes {
		volume := &pod.Spec.Volumes[i]
		folder, err := n.mount(ctx, pod, volume)
		if err != nil {
			return nil, fmt.Errorf("volume %s: %w", volume.Name, err)
		}
		folders[volume.Name] = folder
	}
	return folders, nil
}

// refresh updates files from Secrets and ConfigMaps, but not projected volumes, because each update would create a
// new token.
func (n *Node) refresh(ctx context.Context, pod *corev1.Pod) {
	for i := range pod.Spec.Volumes {
		volume := &pod.Spec.Volumes[i]
		if volume.Secret != nil || volume.ConfigMap != nil {
			if _, err := n.mount(ctx, pod, volume); err != nil && ctx.Err() == nil {
				n.log("pod %s: cannot update volume %s: %v", pod.Name, volume.Name, err)
			}
		}
	}
}

func (n *Node) containersOf(pod *corev1.Pod) (all []*container) {
	for i := range pod.Spec.Containers {
		spec := &pod.Spec.Containers[i]
		all = append(all, &container{
			node: n, pod: pod, spec: spec, id: string(pod.UID) + "-" + spec.Name,
			status: corev1.ContainerStatus{Name: spec.Name, Image: spec.Image, ImageID: spec.Image, State: corev1.ContainerState{
				Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"},
			}},
		})
	}
	return all
}

// wanted reports whether the pod exists, is not being deleted, and runs on a machine that has not been switched off.
func (n *Node) wanted(ctx context.Context, pod *corev1.Pod) bool {
	if ctx.Err() != nil || n.off(pod) {
		return false
	}
	latest, ok := n.seen(pod)
	return ok && latest.DeletionTimestamp == nil
}

// graceOf returns the pod's grace period, or 0 if the test has ended or the machine has been switched off.
func (n *Node) graceOf(ctx context.Context, pod *corev1.Pod) time.Duration {
	if ctx.Err() != nil || n.off(pod) {
		return 0
	}
	seconds := *pod.Spec.TerminationGracePeriodSeconds
	if latest, ok := n.seen(pod); ok && latest.DeletionGracePeriodSeconds != nil {
		seconds = *latest.DeletionGracePeriodSeconds
	}
	return time.Duration(seconds) * time.Second
}

// report updates the pod's status in the API server if the status has changed.
func (n *Node) report(ctx context.Context, pod *corev1.Pod, containers []*container) {
	latest, err := n.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	if err != nil || latest.UID != pod.UID {
		return
	}
	before := latest.Status.DeepCopy()
	status := &latest.Status
	status.Phase, status.PodIP, status.PodIPs, status.StartTime = phase(pod, containers), pod.Status.PodIP, pod.Status.PodIPs, pod.Status.StartTime
	status.HostIP, status.HostIPs, status.ContainerStatuses = resolver, []corev1.HostIP{{IP: resolver}}, nil
	ready := corev1.ConditionTrue
	for _, c := range containers {
		current := c.current()
		status.ContainerStatuses = append(status.ContainerStatuses, current)
		if !current.Ready {
			ready = corev1.ConditionFalse
		}
	}
	for _, kind := range []corev1.PodConditionType{corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady} {
		if kind == corev1.PodInitialized {
			setCondition(status, kind, corev1.ConditionTrue)
		} else {
			setCondition(status, kind, ready)
		}
	}
	if equality.Semantic.DeepEqual(before, status) {
		return
	}
	if _, err := n.client.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, latest, metav1.UpdateOptions{}); err != nil && ctx.Err() == nil {
		n.log("cannot update the status of pod %s: %v", pod.Name, err)
	}
}

// phase returns the phase of a pod. Only pods that belong to a Job can succeed or fail.
func phase(pod *corev1.Pod, containers []*container) corev1.PodPhase {
	result := corev1.PodSucceeded
	for _, c := range containers {
		switch ended := c.current().State.Terminated; {
		case ended == nil || pod.Spec.RestartPolicy == corev1.RestartPolicyAlways:
			return corev1.PodRunning
		case ended.ExitCode != 0:
			result = corev1.PodFailed
		}
	}
	return result
}

func setCondition(status *corev1.PodStatus, kind corev1.PodConditionType, value corev1.ConditionStatus) {
	for i := range status.Conditions {
		if c := &status.Conditions[i]; c.Type == kind {
			if c.Status != value {
				c.Status, c.LastTransitionTime = value, metav1.Now()
			}
			return
		}
	}
	status.Conditions = append(status.Conditions, corev1.PodCondition{Type: kind, Status: value, LastTransitionTime: metav1.Now()})
}

// finish removes the pod's resources and, unless the pod's machine has been switched off, deletes the pod from the
// API server.
func (n *Node) finish(pod *corev1.Pod) {
	unplug(n.sandboxName(pod))
	_ = os.RemoveAll(n.podDir(pod)) // anything left behind stays in the test's temporary directory
	if n.off(pod) {
		return
	}
	now := int64(0)
	err := n.client.CoreV1().Pods(pod.Namespace).Delete(context.Background(), pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: &now, Preconditions: &metav1.Preconditions{UID: &pod.UID},
	})
	if err != nil {
		n.log("cannot delete pod %s: %v", pod.Name, err)
	}
}

func (n *Node) podDir(pod *corev1.Pod) string { return filepath.Join(n.dir, "pods", string(pod.UID)) }

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
