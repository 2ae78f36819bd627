package recovery

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/storage/schema"

	"etcd-wrapper/bootstrap/datadir/datadirtest"
)

// A volume that was put back, or copied, and written to since has the same identity.
func TestValidDataAreNotReplacedByAnotherHistory(t *testing.T) {
	w := newWorld(t)
	w.used()
	w.older = filepath.Join(t.TempDir(), "old")
	require.NoError(t, os.CopyFS(w.older, os.DirFS(w.member.DataDir)))
	w.put("a", "b", "c")
	w.backUp(1)
	w.rollBack()
	w.put("acknowledged elsewhere")
	err := w.run()
	require.ErrorContains(t, err, "took different ways")
	require.ErrorContains(t, err, "move the data directory away")
	keys, _ := w.keys()
	assert.Contains(t, keys, "acknowledged elsewhere")
	assert.Empty(t, w.asides())
	assert.Len(t, w.generations(), 1)
}

// The configuration names one member, and the cluster was made one of three by hand: two of them may be a quorum.
func TestAMemberOfSeveralIsNotRestoredAsAClusterOfOneUnlessSomebodySaysSo(t *testing.T) {
	w := newWorld(t)
	require.NoError(t, os.Rename(datadirtest.Initialized(t), w.member.DataDir))
	w.joinedBy("aa", "bb")
	require.Equal(t, 3, stand(t, w.member.DataDir).Members)
	w.backUp(1)
	require.NoError(t, os.RemoveAll(w.member.DataDir))
	err := w.run()
	require.ErrorContains(t, err, "there were 3 voting members")
	require.ErrorContains(t, err, "name all members in initial-cluster")
	assert.Len(t, w.generations(), 1)
	assert.NoDirExists(t, w.member.DataDir+restored)

	w.options.Request = &Request{ID: "the others are gone"}
	require.NoError(t, w.run())
	assert.Len(t, w.generations(), 2)
	assert.Equal(t, 1, stand(t, w.member.DataDir).Members)
}

// joinedBy adds members to the closed database.
func (w *world) joinedBy(ids ...string) {
	w.t.Helper()
	db, err := bolt.Open(w.database(), 0o600, nil)
	require.NoError(w.t, err)
	defer db.Close()
	require.NoError(w.t, db.Update(func(tx *bolt.Tx) error {
		members := tx.Bucket(schema.Members.Name())
		_, first := members.Cursor().First()
		value := bytes.Clone(first)
		for _, id := range ids {
			if err := members.Put([]byte(strings.Repeat("0", 16-len(id))+id), value); err != nil {
				return err
			}
		}
		return nil
	}))
}

// Whether it is broken is not looked at again: the restore that was about to be claimed is gone on with as it was begun.
func TestABrokenVolumeIsNotComparedAfterAKillEither(t *testing.T) {
	w := newWorld(t)
	w.used()
	w.older = filepath.Join(t.TempDir(), "old")
	require.NoError(t, os.CopyFS(w.older, os.DirFS(w.member.DataDir)))
	w.put("a")
	w.backUp(1)
	w.rollBack()
	w.put("damaged")
	broken := func(context.Context) error { return errors.New("a page is damaged") }
	r := w.recovery()
	r.interrupt = before(ClaimGeneration, func() error { return errCut })
	_, err := r.Run(t.Context(), w.member, broken)
	require.ErrorIs(t, err, errCut)
	_, err = w.recovery().Run(t.Context(), w.member, broken)
	require.NoError(t, err)
	keys, _ := w.keys()
	assert.Equal(t, []string{"a", "key"}, keys)
	assert.Len(t, w.asides(), 1)
}
