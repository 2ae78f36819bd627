package etcdconf_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// certificateFiles writes a self-signed pair and things that are not one, and returns the directory.
func certificateFiles(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	writePair(t, dir, "tls")
	writePair(t, dir, "other")
	for name, content := range map[string]string{
		"empty.pem":  "",
		"text.pem":   "hunter2",
		"broken.pem": "-----BEGIN CERTIFICATE-----\naHVudGVyMg==\n-----END CERTIFICATE-----\n",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	return dir
}

func writePair(t testing.TB, dir, name string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	encodedKey, err := x509.MarshalECPrivateKey(key)
	require.NoError(t, err)
	writePEM(t, filepath.Join(dir, name+".crt"), "CERTIFICATE", certificate)
	writePEM(t, filepath.Join(dir, name+".key"), "EC PRIVATE KEY", encodedKey)
}

func writePEM(t testing.TB, path, kind string, content []byte) {
	t.Helper()
	block := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: content})
	require.NoError(t, os.WriteFile(path, block, 0o600))
}
