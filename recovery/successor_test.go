package recovery

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/storage/schema"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/store/memory"
	"etcd-wrapper/bootstrap/datadir/datadirtest"
	"etcd-wrapper/recovery/peers"
)

// The data lists the member that wrote the backups as removed.
func TestSoleVoterStartsNextToBackupsOfARemovedMember(t *testing.T) {
	w, o := soleVoter(t)
	o.noQuorum = true
	server, err := datadirtest.Start(w.member.DataDir)
	require.NoError(t, err)
	client := v3client.New(server.Server)
	added, err := client.MemberAddAsLearner(t.Context(), []string{"http://127.0.0.1:2"})
	require.NoError(t, err)
	_, err = client.MemberRemove(t.Context(), added.Member.ID)
	require.NoError(t, err)
	server.Close()
	w.emptyStore()
	w.backUpAs(hex(added.Member.ID))
	w.requireStarts()
}

// soleVoter returns a member of three whose data is from a time when it was the only voter, and whose peers do not
// answer.
func soleVoter(t *testing.T) (*world, *fakePeers) {
	t.Helper()
	w, o := ofThree(t)
	require.Equal(t, 1, positionOf(t, w.member.DataDir).Voters)
	o.listing = peers.Unknown
	return w, o
}

// advanceStore adds revisions to the store that the volume lacks.
func (w *world) advanceStore() {
	w.t.Helper()
	w.copyVolume()
	w.put("a")
	w.backUp()
	w.rollBack()
}

// patient runs recovery until the third pause.
func (w *world) patient() (string, error) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	defer cancel()
	pauses := 0
	w.wait = func(context.Context, int) {
		if pauses++; pauses == 3 {
			cancel()
		}
	}
	return w.startWithin(ctx, nil)
}

func (w *world) emptyStore() {
	w.store = memory.New()
	w.archive = archive.New(w.store, w.archive.Keys())
	w.options.Archive = w.archive
}

// backUpAs stores a full snapshot of the volume, as another member.
func (w *world) backUpAs(member string) {
	w.t.Helper()
	w.found(at)
	w.uploadFullAs(member, ours, 1, at)
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

// leave records in the closed database that the member was removed from the cluster, as etcd does.
func (w *world) leave() {
	w.t.Helper()
	id := []byte(hex(positionOf(w.t, w.member.DataDir).MemberID))
	db, err := bolt.Open(w.database(), 0o600, nil)
	require.NoError(w.t, err)
	defer db.Close()
	require.NoError(w.t, db.Update(func(tx *bolt.Tx) error {
		return errors.Join(tx.Bucket(schema.Members.Name()).Delete(id), tx.Bucket(schema.MembersRemoved.Name()).Put(id, []byte("removed")))
	}))
}

// A damaged volume is replaced without a comparison, even by the run after a crash.
func TestDamagedVolumeIsNotComparedAfterAKill(t *testing.T) {
	w := newFilledWorld(t)
	w.advanceStore()
	w.put("damaged")
	broken := func(context.Context) error { return errors.New("a page is damaged") }
	r := w.recovery()
	r.interrupt = before(ClaimGeneration, func() error { return errCut })
	_, err := r.prepare(t.Context(), w.member, broken)
	require.ErrorIs(t, err, errCut)
	_, err = w.recovery().prepare(t.Context(), w.member, broken)
	require.NoError(t, err)
	w.requireKeys("a", "key")
	assert.Len(t, w.preserved(), 1)
}
