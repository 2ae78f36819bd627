package writer

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/format/formattest"
)

// with has what follows sealed with keys.
func (s *stand) with(keys *format.Keys) {
	s.options.Keys = keys
	s.options.Open = func(context.Context) (*archive.Archive, error) { return archive.New(s.store, keys), nil }
}

// As after a Secret was missing for one start: whatever had no signature would keep everybody from the backups who trusts signatures alone.
func TestSignedBackupsGetNothingWithoutASignature(t *testing.T) {
	s, made := newStand(t), formattest.NewKeys(t)
	signed := formattest.LoadKeys(t, format.KeyFiles{SigningKey: made.SigningKey, TrustedKeys: made.TrustedKeys})
	s.with(signed)
	s.run()
	s.awaitStored(s.put("a", "1"))
	s.end()

	s.with(&format.Keys{})
	s.run()
	s.requireUntouched("signed", "--backup-signing-key")
	s.end()

	s.with(signed)
	s.run()
	s.awaitStored(s.put("a", "2"))
	s.end()
	history, err := archive.New(s.store, signed).History(t.Context())
	require.NoError(t, err)
	require.Len(t, history.Newest().Chains, 1, "it goes on without a gap")
	require.NoError(t, history.Newest().Chains[0].PastEnd)
}
