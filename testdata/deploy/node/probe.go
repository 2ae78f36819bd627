package node

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// probe begins to ask the container's probes. They end with ctx.
func (c *container) probe(ctx context.Context, running *sync.WaitGroup) {
	if probe := c.spec.ReadinessProbe; probe != nil {
		running.Go(func() { c.ask(ctx, probe, c.setReady) })
	}
	if probe := c.spec.LivenessProbe; probe != nil {
		running.Go(func() {
			c.ask(ctx, probe, func(alive bool) {
				if !alive {
					c.node.log("%s/%s fails its liveness probe", c.pod.Name, c.spec.Name)
					c.signal("KILL")
				}
			})
		})
	}
}

// ask probes at the declared times, and tells when the declared number of answers in a row agree.
func (c *container) ask(ctx context.Context, probe *corev1.Probe, tell func(bool)) {
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
			tell(true)
		} else if failures == probe.FailureThreshold && ctx.Err() == nil {
			tell(false)
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

// prober looks at no certificate, as a kubelet.
func (n *Node) prober(timeout time.Duration) *http.Client {
	return &http.Client{Timeout: timeout, Transport: &http.Transport{
		DialContext: n.network.dial, DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}}
}
