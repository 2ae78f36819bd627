package recovery

import (
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
	"etcd-wrapper/recovery/peers"
)

func TestMembersThatFoundTogetherHaveOneID(t *testing.T) {
	members, err := types.NewURLsMap("m-0=http://m-0:2380,m-1=http://m-1:2380,m-2=http://m-2:2380")
	require.NoError(t, err)
	w, o := ofThree(t)
	w.member.Members, w.member.PeerURLs = members, members["m-2"]
	w.emptyStore()
	w.lose()
	o.listing = peers.Founding
	require.NoError(t, w.run())
	etcd, err := membership.NewClusterFromURLsMap(zap.NewNop(), w.member.InitialClusterToken, members)
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

func TestUnreadableIdentityIsRefused(t *testing.T) {
	w := newFilledWorld(t)
	require.NoError(t, os.WriteFile(filepath.Join(w.member.DataDir, archive.IdentityFile), []byte("{"), 0o600))
	err := w.run()
	require.ErrorContains(t, err, archive.IdentityFile)
	require.ErrorContains(t, err, "move the file aside")
	assert.Len(t, w.generations(), 1)
}

// The cluster in the store keeps writing, so every build would be outdated unless the generation is ended first.
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
