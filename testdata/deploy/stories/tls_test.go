package stories

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"etcd-wrapper/testdata/deploy/cluster"
)

// tlsSecrets makes the members mount the Secrets that withCertificates creates.
const tlsSecrets = "tls: {source: secrets}"

// secrets returns the contents of the three Secrets, keyed by the names that the chart uses with cert-manager.
func (w *environment) secrets(a *authority) map[string]map[string]string {
	domain := "etcd-main-peer." + w.namespace + ".svc"
	return map[string]map[string]string{
		"etcd-main-server-tls": a.issue("etcd-main-server", "localhost", "etcd-main-local", "etcd-main-client", "*.etcd-main-peer", "*."+domain),
		"etcd-main-client-tls": a.issue("etcd-main-client"),
		"etcd-main-peer-tls":   a.issue("etcd-main-peer", "etcd-main-0."+domain, "etcd-main-1."+domain, "etcd-main-2."+domain),
	}
}

func TestThreeMembers_TLS(t *testing.T) {
	w := newEnvironmentWithBucket(t)
	ca := w.withCertificates()
	w.apply(three, tlsSecrets)
	w.awaitReady(3)
	writes := w.startWriter()
	w.renewAll(ca)
	w.checkBackups("etcd-main-0", writes)
	w.unharmed()
	w.awaitMetrics()
}

// The sidecars must work with TLS, with a server certificate and an etcd client certificate each.
func TestThreeMembers_sidecarsAndTLS(t *testing.T) {
	w := newEnvironment(t)
	w.secret("etcd-main-backup-credentials", map[string]string{"region": "eu-west-1"})
	ca := w.withCertificates()
	w.apply(threeWithSidecars, tlsSecrets)
	w.awaitReady(3)
	writes := w.startWriter()
	w.awaitSidecarsReachEtcd()
	w.renewAll(ca)
	w.check(writes)
	w.unharmed()
}

func TestOneMember_sidecarAndTLS(t *testing.T) {
	w := newEnvironment(t)
	w.withCertificates()
	w.apply(oneWithSidecar, tlsSecrets)
	w.awaitReady(1)
	w.greet()
	assert.Contains(t, w.exec("etcd-main-0", "status"), "Serving, ready")
	w.awaitSidecarsReachEtcd()
}

// awaitSidecarsReachEtcd waits until every sidecar has connected to etcd using the real sidecar's flags.
func (w *environment) awaitSidecarsReachEtcd() {
	w.t.Helper()
	for member := range w.pods() {
		cluster.Eventually(w.t, "the sidecar of "+member+" reaches etcd", func() error {
			return contains(w.logOf(member, "backup-restore"), "connected to https://etcd-main-local:2379")
		})
	}
}

// withCertificates creates the certificate Secrets without cert-manager.
func (w *environment) withCertificates() *authority {
	w.t.Helper()
	ca := newAuthority(w.t)
	w.identity = ca.identity()
	for name, files := range w.secrets(ca) {
		w.secret(name, files)
	}
	return ca
}

// renewAll replaces the certificates in the Secrets and waits until the members use the new certificates.
func (w *environment) renewAll(ca *authority) {
	w.t.Helper()
	before := ca.issued + 1
	for name, files := range w.secrets(ca) {
		w.renew(name, files)
	}
	for member := range w.pods() {
		cluster.Eventually(w.t, member+" serves the new certificate", func() error {
			if now, err := w.serial(member); err != nil || now <= before {
				return errors.Join(err, fmt.Errorf("the certificate still has serial number %d: %w", now, errNotYet))
			}
			return nil
		})
	}
}

// unharmed checks that no container has been restarted and that all members are ready.
func (w *environment) unharmed() {
	w.t.Helper()
	for name, pod := range w.pods() {
		for _, container := range pod.Status.ContainerStatuses {
			assert.Zero(w.t, container.RestartCount, "container %s of %s was restarted", container.Name, name)
		}
		assert.Contains(w.t, w.exec(name, "status"), "Serving, ready")
	}
}

// serial returns the serial number of a member's server certificate.
func (w *environment) serial(member string) (int64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	conn, err := w.node.Dial(ctx, w.namespace, member+".etcd-main-peer:2379")
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	config := w.identity.Clone()
	config.ServerName = member + ".etcd-main-peer"
	secured := tls.Client(conn, config)
	if err := secured.HandshakeContext(ctx); err != nil {
		return 0, err
	}
	return secured.ConnectionState().PeerCertificates[0].SerialNumber.Int64(), nil
}

func (w *environment) renew(name string, files map[string]string) {
	w.t.Helper()
	found, err := w.Client.CoreV1().Secrets(w.namespace).Get(w.t.Context(), name, metav1.GetOptions{})
	require.NoError(w.t, err)
	found.StringData = files
	_, err = w.Client.CoreV1().Secrets(w.namespace).Update(w.t.Context(), found, metav1.UpdateOptions{})
	require.NoError(w.t, err)
}
