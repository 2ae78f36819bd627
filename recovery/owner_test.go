package recovery

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.uber.org/zap"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/format/formattest"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
	"etcd-wrapper/bootstrap/datadir/datadirtest"
	"etcd-wrapper/recovery/peers"
)

// identity returns the identity of the data.
func (w *world) identity() archive.Identity {
	w.t.Helper()
	identity, err := archive.ReadIdentity(w.member.DataDir)
	require.NoError(w.t, err)
	return identity
}

func (w *world) clusterManifest() archive.Cluster {
	w.t.Helper()
	cluster, err := w.archive.Cluster(w.t.Context())
	require.NoError(w.t, err)
	return cluster
}

// replaceByPlainData gives the volume the data of a plain etcd.
func (w *world) replaceByPlainData() {
	w.t.Helper()
	w.lose()
	require.NoError(w.t, os.Rename(datadirtest.Initialized(w.t), w.member.DataDir))
}

func TestNewClusterGetsItsIDBeforeEtcdStarts(t *testing.T) {
	w := newWorld(t)
	require.NoError(t, w.run())
	first := w.clusterManifest()
	assert.Len(t, first.Cluster, 32)
	assert.Equal(t, "etcd-cluster", first.Owner)
	assert.Equal(t, archive.Identity{Cluster: first.Cluster, Generation: 1}, w.identity())
	assert.Empty(t, w.generations(), "they are begun with the first backup")

	require.NoError(t, w.run(), "it was cut off before etcd had stored anything")
	w.lose()
	require.NoError(t, w.run(), "or before the volume knew")
	assert.Equal(t, first, w.clusterManifest())
	assert.Equal(t, first.Cluster, w.identity().Cluster)

	w.lose()
	w.options.Owner = func(token string) string { return "second/" + token }
	w.requireRefused("belongs to cluster "+first.Cluster+" of etcd-cluster", "--adopt")
}

// A lost reply must not lead to another ID.
func TestIDIsKeptIfTheReplyIsLost(t *testing.T) {
	w := newWorld(t)
	w.store.Inject(memory.Fault{Op: memory.Put, Prefix: "cluster.json", Err: memory.ErrUnreachable, ReplyLost: true, Times: 1})
	require.NoError(t, w.run())
	assert.Equal(t, w.clusterManifest().Cluster, w.identity().Cluster)
}

// A member without an ID would be refused after the others have founded the store.
func TestEmptyVolumeWaitsForItsID(t *testing.T) {
	w := newWorld(t)
	w.store.Inject(memory.Fault{Op: memory.Put, Prefix: "cluster.json", Err: memory.ErrUnreachable})
	require.ErrorContains(t, w.run(), "cannot create the ID of a new cluster")
	assert.NoFileExists(t, filepath.Join(w.member.DataDir, archive.IdentityFile))
	w.store.ClearFaults()
	require.NoError(t, w.run())
	assert.Equal(t, w.clusterManifest().Cluster, w.identity().Cluster)
}

func TestMembersThatFoundTogetherHaveOneID(t *testing.T) {
	members, err := types.NewURLsMap("m-0=http://m-0:2380,m-1=http://m-1:2380,m-2=http://m-2:2380")
	require.NoError(t, err)
	w, o := ofThree(t)
	w.member.Members, w.member.PeerURLs = members, members["m-2"]
	w.emptyStore()
	w.lose()
	o.listing = peers.Founding
	require.NoError(t, w.run())
	etcd, err := membership.NewClusterFromURLsMap(zap.NewNop(), w.member.Token, members)
	require.NoError(t, err)
	assert.Equal(t, hex(uint64(etcd.ID())), w.clusterManifest().Etcd, "the ID that etcd gives the cluster")
	other, o := ofThree(t)
	other.archive, other.options.Archive = w.archive, w.archive
	other.member.Name, other.member.Members, other.member.PeerURLs = "m-1", members, members["m-1"]
	other.lose()
	o.listing = peers.Founding
	require.NoError(t, other.run())
	assert.Equal(t, w.identity(), other.identity())
}

func TestUnnamedDataFoundAStoreButDoNotContinueInAnother(t *testing.T) {
	w := newWorld(t)
	w.replaceByPlainData()
	require.NoError(t, w.run())
	first := w.clusterManifest()
	assert.Equal(t, hex(positionOf(t, w.member.DataDir).ClusterID), first.Etcd)
	assert.Equal(t, first.Cluster, w.identity().Cluster)

	_, err := w.archive.Create(t.Context(), first, 1)
	require.NoError(t, err)
	w.uploadFull(first.Cluster)
	w.replaceByPlainData()
	w.requireRefused("the data name no cluster", "belongs to cluster "+first.Cluster, "--adopt")
}

func TestUnreadableIdentityIsRefused(t *testing.T) {
	w := newFilledWorld(t)
	require.NoError(t, os.WriteFile(filepath.Join(w.member.DataDir, archive.IdentityFile), []byte("{"), 0o600))
	err := w.run()
	require.ErrorContains(t, err, archive.IdentityFile)
	require.ErrorContains(t, err, "move that file away")
	assert.Len(t, w.generations(), 1)
}

// Its cluster writes all the time, so every build would be outdated if the generation were not ended first.
func TestAdoptionEndsTheGenerationBeforeItBuilds(t *testing.T) {
	w := newFilledWorld(t)
	w.lose()
	w.options.Owner = func(token string) string { return "second/" + token }
	w.options.Adopt = ours
	builds := 0
	writes := func() error {
		builds++
		head, err := w.archive.Head(t.Context(), 1)
		require.NoError(t, err)
		return w.archive.PutStored(t.Context(), 1, head.Position, formattest.Segment(t, w.archive.Keys(), head.Start, format.Source{Session: "theirs"}).Reader())
	}
	require.NoError(t, w.runWith(func(next Action) error {
		if next == EndAdopted && builds < 3 {
			return writes()
		}
		if next == BuildData {
			head, err := w.archive.Head(t.Context(), 1)
			require.NoError(t, err)
			require.NotNil(t, head.Ending(), "nothing can be added any more")
		}
		return nil
	}))
	assert.Equal(t, 1, builds)
	assert.Len(t, w.generations(), 2)
}

func TestDataOfAnEndedGenerationAreNotServedAgain(t *testing.T) {
	w := newFilledWorld(t)
	require.NoError(t, w.recovery().RecordMismatch(w.member.DataDir, errors.New("another copy of these data goes on")))
	w.store.Inject(memory.Fault{Err: store.ErrUnavailable})
	_, err := w.patient()
	require.ErrorContains(t, err, "recovery was stopped in AskStore")
}
