package harness

import (
	"fmt"
	"strings"
	"testing"

	"etcd-wrapper/cmd/suites/certificates"
	"etcd-wrapper/cmd/suites/ports"
)

// Cluster starts the members of a new cluster and waits until all are ready.
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

// Members returns the pods of one new cluster, with plain connections unless they are secured.
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

// StandaloneMembers is like Members, but without sidecars.
func StandaloneMembers(t *testing.T, size int, secure ...func([]*Pod)) (pods []*Pod) {
	t.Helper()
	pods = Members(t, size, secure...)
	for _, p := range pods {
		p.Sidecar.late, p.Sidecar.Port = true, ports.Lease(t)
		p.standAlone()
	}
	return pods
}

// PeerTLS secures the connections between members, which must show a certificate.
func PeerTLS(pods []*Pod) {
	authority := certificates.NewAuthority(pods[0].T, "peers")
	for _, p := range pods {
		pair := authority.Issue(fmt.Sprintf("peer-%d", p.PeerPort))
		p.securePeers(map[string]any{
			"cert-file": pair.Cert, "key-file": pair.Key, "client-cert-auth": true, "trusted-ca-file": authority.Bundle(),
		})
	}
}

// AutoPeerTLS secures them with certificates that etcd creates.
func AutoPeerTLS(pods []*Pod) {
	for _, p := range pods {
		p.securePeers(map[string]any{"auto-tls": true})
	}
}

// ClientTLS secures the connections of clients, which must show a certificate.
func ClientTLS(pods []*Pod) {
	authority := certificates.NewAuthority(pods[0].T, "clients")
	for _, p := range pods {
		p.DemandCertificates(authority)
	}
}

func (p *Pod) securePeers(security map[string]any) {
	p.Config["peer-transport-security"] = security
	p.Config["listen-peer-urls"], p.Config["initial-advertise-peer-urls"] = p.PeerURL(), p.PeerURL()
}
