package member_test

import (
	"fmt"
	"testing"

	"etcd-wrapper/member/state"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestView(t *testing.T) {
	t.Parallel()
	members := three(t)
	lead, follower := members[0], members[1]
	var view state.Member
	require.Eventually(t, func() bool {
		view, _ = follower.View()
		return len(follower.Missing()) == 0 && len(view.Peers) == 3 && view.Leader == lead.ID().String()
	}, patience, tick, "%v", view)
	assert.Equal(t, follower.config.Name, view.Name)
	assert.Regexp(t, "^[0-9a-f]+$", view.ClusterID)
	assert.Positive(t, view.Term)
	assert.Positive(t, view.Revision)
	assert.Positive(t, view.DBSize)
	assert.Positive(t, view.DBInUse)
	assert.EqualValues(t, 2<<30, view.Quota, "etcd's default")
	for i, name := range []string{"etcd-0", "etcd-1", "etcd-2"} {
		peer := view.Peers[i]
		assert.Equal(t, name, peer.Name)
		assert.True(t, peer.Active)
		assert.False(t, peer.Learner)
		assert.Equal(t, peer.ID == view.Leader, peer.Leader)
		assert.Len(t, peer.URLs, 1)
	}

	lead.mustClose(t)
	_, ok := lead.View()
	assert.False(t, ok, "it has closed")
	require.Eventually(t, func() bool { return len(follower.Missing()) == 1 }, patience, tick)
	assert.Equal(t, []string{fmt.Sprintf("%s (%s)", lead.config.Name, lead.config.AdvertisePeerUrls[0].String())}, follower.Missing())
	view, _ = follower.View()
	assert.Len(t, view.Peers, 3, "a member that is wanted does not leave when it closes")
	for _, peer := range view.Peers {
		assert.Equal(t, peer.Name != lead.config.Name, peer.Active, peer.Name)
	}
}

// A member whose data is from a time when it was the only member would serve on its own.
func TestNotJoined(t *testing.T) {
	t.Parallel()
	dir, _, before := stoppedMember(t)
	config := config(t, dir)
	config.ListenPeerUrls, config.AdvertisePeerUrls, config.InitialCluster = before.ListenPeerUrls, before.AdvertisePeerUrls, before.InitialCluster
	config.InitialCluster += ",etcd-1=http://127.0.0.1:1,etcd-2=http://127.0.0.1:2"
	b := benchWith(t, config)
	assert.Empty(t, b.NotJoined(), "etcd has not opened its log")
	require.NoError(t, b.Open(soon(t)))
	assert.Equal(t, []string{"etcd-1", "etcd-2"}, b.NotJoined())
	_, err := b.client(t).MemberAddAsLearner(soon(t), []string{"http://127.0.0.1:2"})
	require.NoError(t, err)
	assert.Equal(t, []string{"etcd-1"}, b.NotJoined(), "a member has no name until it starts")
	b.mustClose(t)
}

func TestView_notOpen(t *testing.T) {
	b := newBench(t, newDir(t))
	_, ok := b.View()
	assert.False(t, ok)
	assert.Empty(t, b.Missing())
}
