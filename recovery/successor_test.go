package recovery

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"

	"etcd-wrapper/bootstrap/datadir/datadirtest"
	"etcd-wrapper/recovery/peers"
)

// The data records that the member that wrote the backups was removed.
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

// soleVoter returns a member of a three-member cluster whose peers do not respond and whose data is from a time when
// it was the only voter.
func soleVoter(t *testing.T) (*world, *fakePeers) {
	t.Helper()
	w, o := ofThree(t)
	require.Equal(t, 1, positionOf(t, w.member.DataDir).Voters)
	o.listing = peers.Unknown
	return w, o
}

// backUpAs stores a full snapshot of the volume as the given member.
func (w *world) backUpAs(member string) {
	w.t.Helper()
	w.found(at)
	w.uploadFullAs(member, ours, 1, at)
}

// A damaged volume is replaced without a comparison, even in the first run after a crash.
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
