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

// Members returns the pods of one new cluster.
func Members(t *testing.T, size int) (pods []*Pod) {
	t.Helper()
	pods = numbered(t, size)
	introduce(pods)
	return pods
}

// StandaloneMembers returns the pods of one new cluster without sidecars.
func StandaloneMembers(t *testing.T, size int) (pods []*Pod) {
	t.Helper()
	pods = numbered(t, size)
	introduce(pods)
	for _, p := range pods {
		p.leaveSidecar()
	}
	return pods
}

// StandaloneMembersWithAutoTLS is like StandaloneMembers, but the members use TLS with certificates that etcd
// creates.
func StandaloneMembersWithAutoTLS(t *testing.T, size int) (pods []*Pod) {
	t.Helper()
	pods = numbered(t, size)
	for _, p := range pods {
		p.securePeers(map[string]any{"auto-tls": true})
	}
	introduce(pods)
	for _, p := range pods {
		p.leaveSidecar()
	}
	return pods
}

// leaveSidecar makes a pod that has a sidecar standalone.
func (p *Pod) leaveSidecar() {
	p.T.Helper()
	p.Sidecar.late, p.Sidecar.Port = true, ports.Lease(p.T)
	p.standAlone()
}

// StandaloneMembersWithTLS is like StandaloneMembers, but members and clients use TLS and must show a certificate.
func StandaloneMembersWithTLS(t *testing.T, size int) (pods []*Pod) {
	t.Helper()
	pods = numbered(t, size)
	peers, clients := certificates.NewAuthority(t, "peers"), certificates.NewAuthority(t, "clients")
	for _, p := range pods {
		p.peersSpeakTLS(peers)
	}
	introduce(pods)
	for _, p := range pods {
		p.DemandCertificates(clients)
		flags := p.Flags
		p.leaveSidecar()
		p.Flags = append(p.Flags, flags...)
	}
	return pods
}

// numbered returns pods whose members have different names.
func numbered(t *testing.T, count int) (pods []*Pod) {
	t.Helper()
	for i := range count {
		p := NewPod(t)
		p.Config["name"] = fmt.Sprintf("etcd-main-%d", i)
		pods = append(pods, p)
	}
	return pods
}

// introduce adds all members to the configuration of each.
func introduce(pods []*Pod) {
	var members []string
	for _, p := range pods {
		members = append(members, fmt.Sprintf("%s=%s", p.Config["name"], p.PeerURL()))
	}
	for _, p := range pods {
		p.Config["initial-cluster"] = strings.Join(members, ",")
	}
}

// MembersWithTLS returns the pods of one new cluster whose members use TLS between them.
func MembersWithTLS(t *testing.T, size int) (pods []*Pod) {
	t.Helper()
	pods, authority := numbered(t, size), certificates.NewAuthority(t, "peers")
	for _, p := range pods {
		p.peersSpeakTLS(authority)
	}
	introduce(pods)
	return pods
}

func (p *Pod) peersSpeakTLS(a *certificates.Authority) {
	pair := a.Issue(fmt.Sprintf("peer-%d", p.PeerPort))
	p.securePeers(map[string]any{
		"cert-file": pair.Cert, "key-file": pair.Key, "client-cert-auth": true, "trusted-ca-file": a.Bundle(),
	})
}

// securePeers configures TLS for etcd's peers.
func (p *Pod) securePeers(security map[string]any) {
	p.Config["peer-transport-security"] = security
	p.Config["listen-peer-urls"], p.Config["initial-advertise-peer-urls"] = p.PeerURL(), p.PeerURL()
}
