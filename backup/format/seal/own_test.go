package seal_test

import (
	"testing"

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
