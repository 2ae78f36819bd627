package etcdconf_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/cmd/suites/certificates"
)

// certificateFiles writes two pairs and things that are not one, and returns the directory.
func certificateFiles(t testing.TB) string {
	t.Helper()
	authority := certificates.NewAuthority(t, "ca")
	authority.Issue("other")
	dir := filepath.Dir(authority.Issue("tls").Cert)
	for name, content := range map[string]string{
		"empty.pem":  "",
		"text.pem":   "hunter2",
		"broken.pem": "-----BEGIN CERTIFICATE-----\naHVudGVyMg==\n-----END CERTIFICATE-----\n",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	return dir
}

// They come and go while certificates are being replaced, so nobody should give up on a configuration for them.
func TestCertificatesThatCannotBeUsedNowAreNoInvalidConfiguration(t *testing.T) {
	dir := certificateFiles(t)
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	pair := fmt.Sprintf("cert-file: %[1]s/tls.crt, key-file: %[1]s/tls.key", dir)
	for section, temporary := range map[string]bool{
		fmt.Sprintf("{cert-file: %[1]s/tls.crt, key-file: %[1]s/other.key}", dir):  true,
		fmt.Sprintf("{cert-file: %[1]s/none, key-file: %[1]s/tls.key}", dir):       true,
		fmt.Sprintf("{cert-file: %[1]s/broken.pem, key-file: %[1]s/tls.key}", dir): true,
		fmt.Sprintf("{cert-file: %[1]s/empty.pem, key-file: %[1]s/tls.key}", dir):  true,
		fmt.Sprintf("{cert-file: %[1]s/tls.crt, key-file: %[1]s/empty.pem}", dir):  true,
		fmt.Sprintf("{cert-file: %[1]s/fifo, key-file: %[1]s/fifo}", dir):          true,
		fmt.Sprintf("{%s, trusted-ca-file: %s/empty.pem}", pair, dir):              true,
		fmt.Sprintf("{%s, trusted-ca-file: %s/fifo}", pair, dir):                   true,
		fmt.Sprintf("{cert-file: %s/tls.crt}", dir):                                false,
		fmt.Sprintf("{%s, allowed-cn: [a], allowed-hostname: [b]}", pair):          false,
		"{}": false,
	} {
		for _, side := range []string{"client", "peer"} {
			yaml := fmt.Sprintf(minimal+"listen-%[1]s-urls: https://127.0.0.1:2377\n%[1]s-transport-security: %[2]s\n", side, section)
			assert.Equal(t, temporary, errors.Is(refuse(t, yaml), bootstrap.ErrCertificates), yaml)
		}
	}
	assert.NotErrorIs(t, refuse(t, minimal+"snapshot-count: x"), bootstrap.ErrCertificates)
}

func TestJWTKeysThatCannotBeReadNowAreNoInvalidConfiguration(t *testing.T) {
	dir := certificateFiles(t)
	fifo := filepath.Join(dir, "fifo")
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	for token, temporary := range map[string]bool{
		"jwt,sign-method=RS256,priv-key=" + fifo:                         true,
		"jwt,sign-method=ES256,pub-key=/nowhere,priv-key=/nowhere":       true,
		"jwt,sign-method=none,priv-key=" + filepath.Join(dir, "tls.key"): false,
		"jwt": false,
	} {
		keyError := refuse(t, minimal+"auth-token: '"+token+"'")
		assert.Equal(t, temporary, errors.Is(keyError, bootstrap.ErrCertificates), token)
		assert.Equal(t, "auth-token", keyError.Key)
	}
	key := filepath.Join(dir, "tls.key")
	assert.NotNil(t, parse(t, minimal+"auth-token: 'jwt,sign-method=ES256,priv-key="+key+"'"))
}
