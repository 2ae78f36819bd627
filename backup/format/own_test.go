package format_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/format/formattest"
)

func TestCheckOwn(t *testing.T) {
	ours, theirs := formattest.NewKeys(t), formattest.NewKeys(t)
	require.NoError(t, (&format.Keys{}).CheckOwn())
	require.NoError(t, ours.Load(t).CheckOwn())
	require.NoError(t, formattest.LoadKeys(t, format.KeyFiles{SigningKey: ours.SigningKey}).CheckOwn())
	rotated := formattest.JoinFiles(t, theirs.TrustedKeys, ours.TrustedKeys)
	require.NoError(t, formattest.LoadKeys(t, format.KeyFiles{SigningKey: ours.SigningKey, TrustedKeys: rotated}).CheckOwn())

	unsigned := formattest.LoadKeys(t, format.KeyFiles{TrustedKeys: ours.TrustedKeys}).CheckOwn()
	require.ErrorContains(t, unsigned, "--backup-trusted-keys: ")
	strange := formattest.LoadKeys(t, format.KeyFiles{SigningKey: ours.SigningKey, TrustedKeys: theirs.TrustedKeys}).CheckOwn()
	require.ErrorContains(t, strange, "--backup-signing-key: ")
	_, err := formattest.LoadKeys(t, format.KeyFiles{SigningKey: ours.SigningKey, TrustedKeys: theirs.TrustedKeys}).Sign(format.Heading{})
	require.Equal(t, strange, err, "nothing is signed that nobody could use")
}

func TestWeaknesses(t *testing.T) {
	assert.Empty(t, (&format.Keys{}).Weaknesses())
	ours := formattest.NewKeys(t)
	for _, secret := range []string{ours.SigningKey, ours.Identities} {
		require.NoError(t, os.Chmod(secret, 0o440))
	}
	assert.Empty(t, ours.Load(t).Weaknesses())

	signed := formattest.LoadKeys(t, format.KeyFiles{SigningKey: ours.SigningKey}).Weaknesses()
	require.Len(t, signed, 1)
	assert.Contains(t, signed[0], "set --backup-trusted-keys as well")

	for flag, secret := range map[string]string{"--backup-signing-key: ": ours.SigningKey, "--backup-identities: ": ours.Identities} {
		require.NoError(t, os.Chmod(secret, 0o444))
		weak := ours.Load(t).Weaknesses()
		require.Len(t, weak, 1)
		assert.Contains(t, weak[0], flag+"every user of this machine can read "+secret)
		require.NoError(t, os.Chmod(secret, 0o440))
	}
}
