package stories

import (
	"context"
	"crypto/tls"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"etcd-wrapper/testdata/deploy/cluster"
)

// secrets are the three that the component tls mounts, with the names that cert-manager/certificates.yaml asks for.
func secrets(a *authority) map[string]map[string]string {
	return map[string]map[string]string{
		"etcd-main-server-tls": a.issue("etcd-main-server", "localhost", "etcd-main-local", "etcd-main-client", "*.etcd-main-peer"),
		"etcd-main-client-tls": a.issue("etcd-main-client"),
		"etcd-main-peer-tls":   a.issue("etcd-main-peer", "etcd-main-0.etcd-main-peer", "etcd-main-1.etcd-main-peer", "etcd-main-2.etcd-main-peer"),
	}
}

func TestThreeMembersSpeakTLSAndTheirCertificatesAreRenewed(t *testing.T) {
	w := newWorld(t)
	ca := newAuthority(t)
	w.identity = ca.identity()
	for name, files := range secrets(ca) {
		w.secret(name, files)
	}
	w.apply(w.overlay("standalone-ha", "components: [../../deploy/components/tls-three]\n"))
	w.awaitReady(3)
	w.greet()
	assert.Contains(t, w.asked("etcd-main-0", "status"), "Serving, ready")
	writes := w.startWriter()

	before := w.serial("etcd-main-0")
	for name, files := range secrets(ca) {
		w.renew(name, files)
	}
	for member := range w.pods() {
		cluster.Eventually(t, member+" shows the new certificate", func() error {
			if now := w.serial(member); now <= before {
				return fmt.Errorf("it is still number %d: %w", now, errNotYet)
			}
			return nil
		})
	}
	w.check(writes)
	for name, pod := range w.pods() {
		assert.Zero(t, pod.Status.ContainerStatuses[0].RestartCount, "%s was not started again", name)
	}
	w.awaitReady(3)
}

// serial is the number of the certificate that a member shows to clients.
func (w *world) serial(member string) int64 {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	conn, err := w.node.Dial(ctx, namespace, member+".etcd-main-peer:2379")
	require.NoError(w.t, err)
	defer conn.Close()
	config := w.identity.Clone()
	config.ServerName = member + ".etcd-main-peer"
	secured := tls.Client(conn, config)
	require.NoError(w.t, secured.HandshakeContext(ctx))
	return secured.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
}

func (w *world) renew(name string, files map[string]string) {
	w.t.Helper()
	found, err := w.Client.CoreV1().Secrets(namespace).Get(w.t.Context(), name, metav1.GetOptions{})
	require.NoError(w.t, err)
	found.StringData = files
	_, err = w.Client.CoreV1().Secrets(namespace).Update(w.t.Context(), found, metav1.UpdateOptions{})
	require.NoError(w.t, err)
}
