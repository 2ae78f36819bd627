// Package formattest makes key files, histories of etcd, and segments of them, for tests.
package formattest

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"filippo.io/age"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/format"
)

// Keys is the files of one age identity and one signing key, and of what belongs to them.
type Keys struct {
	format.KeyFiles
}

// NewKeys makes new keys in files of the test's.
func NewKeys(t testing.TB) Keys {
	t.Helper()
	identity, err := age.GenerateX25519Identity()
	require.NoError(t, err)
	public, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	signing, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	trusted, err := x509.MarshalPKIXPublicKey(public)
	require.NoError(t, err)
	return Keys{KeyFiles: format.KeyFiles{
		Recipients:  WriteFile(t, "# the pods'\n"+identity.Recipient().String()+"\n"),
		Identities:  WriteFile(t, "# kept in the safe\n"+identity.String()+"\n"),
		SigningKey:  WriteFile(t, PEM("PRIVATE KEY", signing)),
		TrustedKeys: WriteFile(t, PEM("PUBLIC KEY", trusted)),
	}}
}

// Load loads all of them.
func (p Keys) Load(t testing.TB) *format.Keys { return LoadKeys(t, p.KeyFiles) }

// LoadKeys loads files that must be right.
func LoadKeys(t testing.TB, files format.KeyFiles) *format.Keys {
	t.Helper()
	keys, err := format.LoadKeys(files)
	require.NoError(t, err)
	return keys
}

// WriteFile makes a file and returns its path.
func WriteFile(t testing.TB, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

// JoinFiles writes the contents of several files to one and returns its path.
func JoinFiles(t testing.TB, paths ...string) string {
	t.Helper()
	var all strings.Builder
	for _, path := range paths {
		content, err := os.ReadFile(path)
		require.NoError(t, err)
		all.Write(content)
	}
	return WriteFile(t, all.String())
}

// PEM encodes a block.
func PEM(kind string, bytes []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: bytes}))
}
