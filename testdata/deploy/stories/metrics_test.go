package stories

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"etcd-wrapper/testdata/deploy/cluster"
)

var (
	metric = regexp.MustCompile(`\betcd_[a-z0-9_]+|\bgrpc_[a-z_]+\{`)
	sample = regexp.MustCompile(`(?m)^[a-z0-9_]+`)
)

// usedMetrics returns the names of the metrics that the alert rules and the dashboard use.
func usedMetrics(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	for _, file := range []string{"rules.yaml", "dashboard.json"} {
		content, err := os.ReadFile(filepath.Join(cluster.Checkout(), "deploy/chart/files", file))
		require.NoError(t, err)
		for _, name := range metric.FindAllString(string(content), -1) {
			names[regexp.MustCompile(`\{$`).ReplaceAllString(name, "")] = true
		}
	}
	require.GreaterOrEqual(t, len(names), 20)
	delete(names, "etcd_wrapper_recoveries_total") // does not exist before the first recovery
	return names
}

// awaitMetrics scrapes all members, as a PodMonitor would, until each of the metrics has been found.
func (w *environment) awaitMetrics() {
	w.t.Helper()
	wanted := usedMetrics(w.t)
	cluster.Eventually(w.t, "all metrics are exported", func() error {
		for _, pod := range w.pods() {
			for _, port := range []string{"9095", "2379"} {
				text, err := w.scrape(pod, port)
				if err != nil {
					return err
				}
				for _, name := range sample.FindAllString(text, -1) {
					delete(wanted, name)
				}
			}
		}
		if len(wanted) > 0 {
			return fmt.Errorf("no member exports %v: %w", wanted, errNotYet)
		}
		return nil
	})
}

func (w *environment) scrape(pod *corev1.Pod, port string) (string, error) {
	config := w.identity.Clone()
	config.ServerName = "etcd-main-client"
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		TLSClientConfig: config, DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			return w.node.Dial(ctx, w.namespace, address)
		},
	}}
	reply, err := client.Get("https://" + net.JoinHostPort(pod.Status.PodIP, port) + "/metrics")
	if err != nil {
		return "", err
	}
	content, err := io.ReadAll(reply.Body)
	return string(content), errors.Join(err, reply.Body.Close())
}
