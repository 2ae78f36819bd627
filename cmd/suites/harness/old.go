package harness

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"etcd-wrapper/cmd/suites/certificates"
)

// BeginOldEtcd runs etcd 3.5 with the pod's data and configuration, as a sidecar or the reference program does.
func (p *Pod) BeginOldEtcd() *Command {
	p.T.Helper()
	path, err := oldEtcd()
	require.NoError(p.T, err, "etcd 3.5 was built")
	text, err := yaml.Marshal(p.Config)
	require.NoError(p.T, err)
	file := filepath.Join(p.Dir, "old-etcd.yaml")
	require.NoError(p.T, os.WriteFile(file, text, 0o600))
	return p.begin(exec.Command(path, "--config-file="+file))
}

// Stop sends SIGTERM and waits for the end.
func (c *Command) Stop() {
	c.t.Helper()
	require.NoError(c.t, c.cmd.Process.Signal(syscall.SIGTERM))
	c.Wait()
}

// oldEtcd is the path of etcd 3.5. It is built from a module of its own, once for all suites: the first time that takes
// half a minute and the module proxy.
var oldEtcd = sync.OnceValues(func() (path string, err error) {
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	path = filepath.Join(root, "bin", "test", "etcd-3.5")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}
	release, err := lock(path + ".lock")
	if err != nil {
		return "", err
	}
	defer release()
	build := exec.Command("go", "build", "-C", filepath.Join(root, "testdata", "etcd35"), "-o", path, "go.etcd.io/etcd/server/v3")
	if said, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, said)
	}
	return path, nil
})

// MembersWithTLS are the pods of one new cluster whose members talk TLS to each other.
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

// securePeers has etcd speak TLS to its peers.
func (p *Pod) securePeers(security map[string]any) {
	p.Config["peer-transport-security"] = security
	p.Config["listen-peer-urls"], p.Config["initial-advertise-peer-urls"] = p.PeerURL(), p.PeerURL()
}
