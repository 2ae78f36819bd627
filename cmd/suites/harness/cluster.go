package harness

import (
	"fmt"
	"strings"
	"testing"

	"etcd-wrapper/cmd/suites/ports"
)

// Cluster starts the members of a new cluster and waits until all of them are ready.
func Cluster(t *testing.T, size int) (pods []*Pod, runs []*Run) {
	t.Helper()
	pods = Members(t, size)
	return pods, StartAll(pods)
}

// StartAll starts the members of a cluster at the same time and waits until all of them are ready.
func StartAll(pods []*Pod, flags ...string) (runs []*Run) {
	for _, p := range pods {
		runs = append(runs, p.Start(flags...))
	}
	for _, run := range runs {
		run.AwaitReady()
	}
	return runs
}

// Members returns the pods of a new cluster. It calls the secure functions with these pods so that they can configure
// TLS; without them, connections are unencrypted.
func Members(t *testing.T, size int, secure ...func([]*Pod)) (pods []*Pod) {
	t.Helper()
	for i := range size {
		p := NewPod(t)
		p.Config["name"] = fmt.Sprintf("etcd-main-%d", i)
		pods = append(pods, p)
	}
	for _, each := range secure {
		each(pods)
	}
	var members []string
	for _, p := range pods {
		members = append(members, fmt.Sprintf("%s=%s", p.Config["name"], p.PeerURL()))
	}
	for _, p := range pods {
		p.Config["initial-cluster"] = strings.Join(members, ",")
	}
	return pods
}

// StandaloneMembers is like Members, but the pods have no sidecars.
func StandaloneMembers(t *testing.T, size int, secure ...func([]*Pod)) (pods []*Pod) {
	t.Helper()
	pods = Members(t, size, secure...)
	for _, p := range pods {
		p.Sidecar.stopped, p.Sidecar.Port = true, ports.Lease(t)
		p.makeStandalone()
	}
	return pods
}
