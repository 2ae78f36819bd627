package seal_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/format/seal"
	"etcd-wrapper/backup/format/seal/sealtest"
)

func TestWhoeverWritesMustBelieveItself(t *testing.T) {
	ours, theirs := sealtest.New(t), sealtest.New(t)
	require.NoError(t, (&seal.Keys{}).CheckOwn())
	require.NoError(t, ours.Load(t).CheckOwn())
	require.NoError(t, sealtest.Load(t, seal.Files{SigningKey: ours.SigningKey}).CheckOwn())
	rotated := sealtest.Joined(t, theirs.TrustedKeys, ours.TrustedKeys)
	require.NoError(t, sealtest.Load(t, seal.Files{SigningKey: ours.SigningKey, TrustedKeys: rotated}).CheckOwn())

	unsigned := sealtest.Load(t, seal.Files{TrustedKeys: ours.TrustedKeys}).CheckOwn()
	require.ErrorContains(t, unsigned, "--backup-trusted-keys: ")
	strange := sealtest.Load(t, seal.Files{SigningKey: ours.SigningKey, TrustedKeys: theirs.TrustedKeys}).CheckOwn()
	require.ErrorContains(t, strange, "--backup-signing-key: ")
	require.ErrorIs(t, strange, seal.ErrUntrusted)
}

func TestKeysThatProtectLessThanTheirOwnerMayThinkAreNamed(t *testing.T) {
	assert.Empty(t, (&seal.Keys{}).Weaknesses())
	ours := sealtest.New(t)
	for _, secret := range []string{ours.SigningKey, ours.Identities} {
		require.NoError(t, os.Chmod(secret, 0o440))
	}
	assert.Empty(t, ours.Load(t).Weaknesses())

	signed := sealtest.Load(t, seal.Files{SigningKey: ours.SigningKey}).Weaknesses()
	require.Len(t, signed, 1)
	assert.Contains(t, signed[0], "give --backup-trusted-keys, too")

	for flag, secret := range map[string]string{"--backup-signing-key: ": ours.SigningKey, "--backup-identities: ": ours.Identities} {
		require.NoError(t, os.Chmod(secret, 0o444))
		weak := ours.Load(t).Weaknesses()
		require.Len(t, weak, 1)
		assert.Contains(t, weak[0], flag+"everybody on this machine can read "+secret)
		require.NoError(t, os.Chmod(secret, 0o440))
	}
}
