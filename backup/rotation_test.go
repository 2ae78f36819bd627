package backup_test

import (
	"io"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup"
	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/format/formattest"
	"etcd-wrapper/backup/writer"
	"etcd-wrapper/cmd/suites/etcdtest"
)

// replace has a key file hold what others do, one behind the other, as docs/backups.md has it done.
func replace(t *testing.T, path string, by ...string) {
	t.Helper()
	var all []byte
	for _, each := range by {
		content, err := os.ReadFile(each)
		require.NoError(t, err)
		all = append(append(all, content...), '\n')
	}
	require.NoError(t, os.WriteFile(path, all, 0o600))
}

// restores reads all that leads to a revision, the longest way.
func (s *subject) restores(t *testing.T, keys *format.Keys, revision int64) error {
	t.Helper()
	from := archive.New(s.store, keys)
	path, err := from.Find(t.Context(), archive.Target{Revision: revision})
	if err != nil {
		return err
	}
	content, err := from.OpenFull(t.Context(), path.Full)
	if err != nil {
		return err
	}
	defer content.Close()
	if _, err := io.Copy(io.Discard, content); err != nil {
		return err
	}
	_, err = from.Read(t.Context(), path, func(format.Row) error { return nil })
	return err
}

func TestKeysAreRotatedWhileBackupsAreMade(t *testing.T) {
	s := newSubject(t, archive.Verified)
	old, renewed, given := formattest.NewKeys(t), formattest.NewKeys(t), formattest.NewKeys(t)
	for _, kind := range [][2]string{
		{given.Recipients, old.Recipients},
		{given.Identities, old.Identities},
		{given.SigningKey, old.SigningKey},
		{given.TrustedKeys, old.TrustedKeys},
	} {
		replace(t, kind[0], kind[1])
	}
	goesOn := func(life *backup.Backups, what string) int64 {
		t.Helper()
		s.put(t, 3)
		revision := s.etcd.Revision()
		require.Eventually(t, func() bool {
			is := life.Facts().Shipped
			return is.Revision >= revision && is.Problem == nil
		}, etcdtest.Patience, 5*time.Millisecond, what)
		return revision
	}
	s.Backups = s.another(t, given.Load(t))
	s.Begin(writer.Server(s.etcd.Server), s.dir, "")
	before := goesOn(s.Backups, "before")

	replace(t, given.Identities, old.Identities, renewed.Identities)
	replace(t, given.Recipients, renewed.Recipients)
	between := goesOn(s.Backups, "with another identity")
	replace(t, given.TrustedKeys, old.TrustedKeys, renewed.TrustedKeys)
	replace(t, given.SigningKey, renewed.SigningKey)
	goesOn(s.Backups, "with another signing key")
	made, err := s.Now(soon(t))
	require.NoError(t, err)
	s.end(t)
	s.Backups = s.another(t, given.Load(t))
	s.Begin(writer.Server(s.etcd.Server), s.dir, "")
	latest := goesOn(s.Backups, "in another life")
	s.end(t)

	history, err := archive.New(s.store, given.Load(t)).History(t.Context())
	require.NoError(t, err)
	require.Len(t, history.Generations, 1)
	assert.Len(t, history.Newest().Chains, 1, "it is one chain all the same")
	for _, revision := range []int64{before, between, made.Revision, latest} {
		assert.NoError(t, s.restores(t, given.Load(t), revision), "with both, revision %d", revision)
	}
	replace(t, given.Identities, renewed.Identities)
	assert.ErrorIs(t, s.restores(t, given.Load(t), before), format.ErrNoIdentity, "the old one is needed for what it was encrypted to")
	assert.NoError(t, s.restores(t, given.Load(t), latest), "and for nothing else")
	replace(t, given.TrustedKeys, old.TrustedKeys)
	assert.ErrorIs(t, s.restores(t, given.Load(t), latest), format.ErrUntrusted)
}
