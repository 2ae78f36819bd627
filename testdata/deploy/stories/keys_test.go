package stories

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// An age key pair for tests.
const (
	identity  = "AGE-SECRET-KEY-1LKMZJE7HY3TN7W2Z7FTAWHKJJCUMH44FKZH2HU5J49TW5EEVHNRS359JW7"
	recipient = "age1zesj80vjwy2j0zqdamgn4t2y44gfmx0say94g8sgrzqkcgyftdhsrlavv3"
)

// Backups must be encrypted and signed with keys from Secrets, as described in docs/deploy.md, and the copy Job must
// not be given a decryption key.
func TestBackups_encryptedAndSigned(t *testing.T) {
	w := newEnvironment(t)
	bucket := w.offerBucket()
	w.secret("etcd-main-backup-credentials", credentials)
	w.secret("age-keys", map[string]string{"recipients": recipient, "identities": identity})
	w.secret("signing-keys", signing(t))
	const values = `replicas: 3
store:
  url: s3://my-bucket
  encryption: {secret: age-keys, recipients: recipients, identities: identities}
  signing: {secret: signing-keys, key: key.pem, trusted: trusted.pem}
copy: {to: "s3://another-bucket/etcd-main"}
`
	w.apply(values)
	w.awaitReady(3)
	writes := w.startWriter()
	w.checkBackups("etcd-main-0", writes)
	w.loseAll()
	w.check(writes)
	w.checkBackups("etcd-main-1", w.startWriter())
	assert.Contains(t, w.recipe("docs/operations.md", "create job", nil), "verified")
	sealed := 0
	require.NoError(t, filepath.WalkDir(bucket, func(path string, found fs.DirEntry, err error) error {
		if err != nil || found.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		assert.NotContains(t, string(content), "written/", path)
		if bytes.HasPrefix(content, []byte("age-encryption.org/")) {
			sealed++
		}
		return err
	}))
	assert.NotZero(t, sealed, "the objects in the bucket must be encrypted")
}

// signing returns a new signing key and the corresponding trusted key.
func signing(t *testing.T) map[string]string {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	key, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	trusted, err := x509.MarshalPKIXPublicKey(public)
	require.NoError(t, err)
	return map[string]string{"key.pem": text("PRIVATE KEY", key), "trusted.pem": text("PUBLIC KEY", trusted)}
}

// With the chart values from docs/deploy.md, every member must require the password, and the backups must include the
// users.
func TestRootPassword_fromSecret(t *testing.T) {
	w := newEnvironmentWithBucket(t)
	w.withCertificates()
	w.secret("etcd-root", map[string]string{"password": "se:cret"})
	w.apply(three, tlsSecrets, "auth: {rootPassword: {secret: etcd-root}}")
	w.awaitReady(3)
	etcdctl := func(pod string, args ...string) string {
		_, err := w.tryExec(pod, append([]string{"etcdctl"}, args...)...)
		require.ErrorContains(t, err, "permission denied", "a client certificate does not replace the password")
		return w.exec(pod, append([]string{"etcdctl", "--user=root:se:cret"}, args...)...)
	}
	etcdctl("etcd-main-2", "put", "key", "value")
	w.loseVolume("etcd-main-2")
	w.awaitReady(3)
	assert.Contains(t, etcdctl("etcd-main-2", "get", "key"), "value")
	w.exec("etcd-main-0", "backup", "now")
	w.loseAll()
	assert.Contains(t, etcdctl("etcd-main-1", "get", "key"), "value")
}
