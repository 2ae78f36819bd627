// Package sealtest makes key files for tests.
package sealtest

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

	"etcd-wrapper/backup/format/seal"
)

// Pair is the files of one age identity and one signing key, and of what belongs to them.
type Pair struct {
	seal.Files
}

// New makes new keys in files of the test's.
func New(t testing.TB) Pair {
	t.Helper()
	identity, err := age.GenerateX25519Identity()
	require.NoError(t, err)
	public, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	signing, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	trusted, err := x509.MarshalPKIXPublicKey(public)
	require.NoError(t, err)
	return Pair{Files: seal.Files{
		Recipients:  Write(t, "# the pods'\n"+identity.Recipient().String()+"\n"),
		Identities:  Write(t, "# kept in the safe\n"+identity.String()+"\n"),
		SigningKey:  Write(t, PEM("PRIVATE KEY", signing)),
		TrustedKeys: Write(t, PEM("PUBLIC KEY", trusted)),
	}}
}

// Load loads all of them.
func (p Pair) Load(t testing.TB) *seal.Keys { return Load(t, p.Files) }

// Load loads files that must be right.
func Load(t testing.TB, files seal.Files) *seal.Keys {
	t.Helper()
	keys, err := seal.Load(files)
	require.NoError(t, err)
	return keys
}

// Write makes a file and returns its path.
func Write(t testing.TB, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

// Joined is a file that holds what several hold.
func Joined(t testing.TB, paths ...string) string {
	t.Helper()
	var all strings.Builder
	for _, path := range paths {
		content, err := os.ReadFile(path)
		require.NoError(t, err)
		all.Write(content)
	}
	return Write(t, all.String())
}

// PEM encodes a block.
func PEM(kind string, bytes []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: bytes}))
}
