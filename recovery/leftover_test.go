package recovery

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/archivetest"
	"etcd-wrapper/bootstrap/datadir/datadirtest"
	"etcd-wrapper/recovery/peers"
)

// afterCommonRestore returns a member that was restored with --restore-to, has lost its volume since, and still has the flags.
func afterCommonRestore(t *testing.T) (*world, *fakePeers) {
	t.Helper()
	w, o := ofThree(t)
	require.NoError(t, archivetest.BeginGeneration(t.Context(), w.archive, archive.Generation{
		Number: 2, Cluster: ours, Owner: "etcd-cluster", Etcd: "beef", Parent: 1, ParentRevision: 2, Restore: "drop", Created: at,
	}))
	w.uploadFull(ours, 2)
	w.lose()
	o.listing, o.cluster, o.id, o.of = peers.Started, 0xbeef, ours, 2
	w.options.Request = &Request{Target: archive.Target{Revision: 2}, ID: "drop"}
	return w, o
}

// The cluster writes backups all the time, and never stops for a member that has lost its volume.
func TestLeftoverRestoreFlagsDoNotBlockALostMember(t *testing.T) {
	for name, c := range map[string]struct {
		happens func(*world, *fakePeers)
		changes []string
	}{
		"lost":                          {func(*world, *fakePeers) {}, []string{"removed", "added"}},
		"added to a cluster that grows": {func(_ *world, o *fakePeers) { o.listing = peers.Unlisted }, []string{"added"}},
		"no quorum at first":            {func(_ *world, o *fakePeers) { o.silent = 3 }, []string{"removed", "added"}},
	} {
		t.Run(name, func(t *testing.T) {
			w, o := afterCommonRestore(t)
			c.happens(w, o)
			w.still = 24 * time.Hour
			w.inPause(10, func() { require.FailNow(t, "the member waits for its own cluster to stop", w.log.String()) })
			w.requireRejoined()
			assert.Equal(t, c.changes, o.changes)
		})
	}
}

func TestMemberWhoseDataContradictTheOthersIsReplaced(t *testing.T) {
	for _, died := range []string{
		"tocommit(9) is out of range [lastIndex(7)]", "entry 7 conflict with committed entry [committed(9)]", "failed to update; member unknown",
	} {
		w, o := ofThree(t)
		w.options.Died = func() string { return "panic: " + died }
		o.silent = 1
		pauses := w.inPause(1, func() { assert.Empty(t, w.preserved(), "nothing is moved without a quorum") })
		w.requireRejoined()
		assert.Equal(t, 1, *pauses, "it does not die of them again meanwhile")
		assert.Len(t, w.preserved(), 1)
		assert.Contains(t, w.log.String(), "etcd crashed on them at its last start")
	}
	w, _ := ofThree(t)
	w.options.Died = func() string { return "no space left on device" }
	w.requireStarts()
}

// kubeadm and charts leave initial-cluster-state: existing in the configuration of a single member.
func TestSingleMemberWithStateExistingIsRestored(t *testing.T) {
	for name, lose := range losses {
		t.Run(name, func(t *testing.T) {
			w := newFilledWorld(t)
			w.member.Joins = true
			lose(w)
			require.NoError(t, w.run())
			w.requireKeys("key")
		})
	}
	w := newWorld(t)
	w.member.Joins = true
	w.requireRefused("initial-cluster-state: existing", "remove initial-cluster-state")
}

func TestNoNewClusterReplacesServedData(t *testing.T) {
	for name, c := range map[string]func(*world){
		"without a store":     func(w *world) { w.options.Archive = nil },
		"with an empty store": func(*world) {},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			c(w)
			dir := w.member.DataDir
			w.options.Lost = func(dataDir string) bool { return dataDir == dir }
			w.requireRefused("etcd has served from this data directory", "delete the file exit_code.last")
			w.options.Lost = func(string) bool { return false }
			require.NoError(t, w.run())
		})
	}
	w := newFilledWorld(t)
	w.options.Lost = func(string) bool { return true }
	w.lose()
	require.NoError(t, w.run())
	w.requireKeys("key")

	w, o := ofThree(t)
	w.options.Lost = func(string) bool { return true }
	w.lose()
	w.requireRejoined()
	assert.Equal(t, peers.Ruins, o.holds, "no other member creates a new cluster either")
}

// A survivor was forced to continue alone: the others must keep data that it does not have.
func TestDataAreKeptIfTheClusterLacksTheirQuorum(t *testing.T) {
	for known, replaced := range map[types.ID]bool{0xabcdef0123456789: true, 0xaaaaaaaaaaaaaaaa: false} {
		w, o := ofThree(t)
		o.other = 0xabcdef0123456789
		w.joinedBy(known.String(), "bb")
		o.listing, o.outdated = peers.Unlisted, errors.New("of a member that the cluster has no more")
		if o.own = positionOf(t, w.member.DataDir).MemberID; !replaced {
			o.own = 7
			assert.Contains(t, w.requireWaiting(o), "which is no quorum, as after force-new-cluster")
			continue
		}
		w.requireRejoined()
		assert.Len(t, w.preserved(), 1)
	}
}

func TestDroppedAlarmsAreLogged(t *testing.T) {
	w := newFilledWorld(t)
	server, err := datadirtest.Start(w.member.DataDir)
	require.NoError(t, err)
	_, err = v3client.New(server.Server).Put(t.Context(), "a", "value")
	require.NoError(t, err)
	_, err = server.Server.Alarm(t.Context(), &etcdserverpb.AlarmRequest{
		Action: etcdserverpb.AlarmRequest_ACTIVATE, MemberID: uint64(server.Server.MemberID()), Alarm: etcdserverpb.AlarmType_CORRUPT,
	})
	require.NoError(t, err)
	server.Close()
	w.backUp(1)
	w.lose()
	require.NoError(t, w.run())
	assert.Contains(t, w.log.String(), `"alarms":["CORRUPT"]`)
}
