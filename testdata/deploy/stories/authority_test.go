package stories

import (
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"etcd-wrapper/testdata/deploy/cluster"
)

// The test follows docs/operations.md. Like the members, the client trusts both authorities before the new one is
// used, and has a new certificate before the old authority is removed.
func TestCARotation_duringWrites(t *testing.T) {
	w := newEnvironmentWithBucket(t)
	former, latter := w.withCertificates(), newAuthority(t)
	latter.issued = 1000 // the serial numbers must differ from those of the old authority
	w.identity.RootCAs.AddCert(latter.certificate)
	var shown atomic.Pointer[tls.Certificate]
	shown.Store(&w.identity.Certificates[0])
	w.identity.Certificates = nil
	w.identity.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return shown.Load(), nil }
	w.apply(three, tlsSecrets)
	w.awaitReady(3)
	writes := w.startWriter()

	old, latest := text("CERTIFICATE", former.certificate.Raw), text("CERTIFICATE", latter.certificate.Raw)
	w.recipe("docs/operations.md", "cat old.crt new.crt", map[string]string{"old.crt": old, "new.crt": latest})

	w.recipe("docs/operations.md", "base64 -w0 $use.key", leaves(w.secrets(latter)))
	shown.Store(&latter.identity().Certificates[0])
	for member := range w.pods() {
		cluster.Eventually(t, member+" serves a certificate of the new authority", func() error {
			if now, err := w.serial(member); err != nil || now < 1000 {
				return errors.Join(err, fmt.Errorf("the certificate has serial number %d: %w", now, errNotYet))
			}
			return nil
		})
	}

	w.recipe("docs/operations.md", "base64 -w0 new.crt", map[string]string{"new.crt": latest})
	w.awaitReady(3)
	w.unharmed()
	shown.Store(&former.identity().Certificates[0])
	assert.Error(t, tryPut(w.etcd(), "refused", "", 5*time.Second), "the old authority is no longer trusted")
	shown.Store(&latter.identity().Certificates[0])
	w.checkBackups("etcd-main-0", writes)
	assert.Empty(t, writes.failed, "no write may fail during the rotation")
}

// leaves returns the certificates and keys in Secrets, keyed by the file names used in docs/operations.md.
func leaves(secrets map[string]map[string]string) map[string]string {
	files := map[string]string{}
	for name, secret := range secrets {
		use := strings.TrimSuffix(strings.TrimPrefix(name, "etcd-main-"), "-tls")
		files[use+".crt"], files[use+".key"] = secret["tls.crt"], secret["tls.key"]
	}
	return files
}
