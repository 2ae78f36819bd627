package harness

import (
	"fmt"
	"strings"
	"testing"
)

// Cluster starts Members that know of each other and waits until all are ready.
func Cluster(t *testing.T, size int) (pods []*Pod, runs []*Run) {
	t.Helper()
	pods = Members(t, size)
	for _, p := range pods {
		runs = append(runs, p.Start())
	}
	for _, run := range runs {
		run.AwaitReady()
	}
	return pods, runs
}

// Members are the pods of one new cluster.
func Members(t *testing.T, size int) (pods []*Pod) {
	t.Helper()
	var members []string
	for i := range size {
		p := NewPod(t)
		p.Config["name"] = fmt.Sprintf("etcd-main-%d", i)
		members = append(members, fmt.Sprintf("etcd-main-%d=%s", i, p.PeerURL()))
		pods = append(pods, p)
	}
	for _, p := range pods {
		p.Config["initial-cluster"] = strings.Join(members, ",")
	}
	return pods
}
