package member_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/server/v3/embed"

	"etcd-wrapper/member"
)

// asked reports whether a member was told to lead at once.
func asked(b *bench) bool { return strings.Contains(b.log.String(), "received MsgTimeoutNow") }

// reopened is a member with the data of another, after two elections' time at most.
func reopened(t *testing.T, of *embed.Config) *bench {
	t.Helper()
	config := config(t, of.Dir)
	config.Name, config.InitialCluster = of.Name, of.InitialCluster
	config.ListenPeerUrls, config.AdvertisePeerUrls = of.ListenPeerUrls, of.AdvertisePeerUrls
	b := benchWith(t, config)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	_ = b.Open(ctx)
	_, _ = b.Close()
	return b
}

func TestTheOnlyVoterLeadsAtOnceWhateverLearnersThereAre(t *testing.T) {
	b := newBench(t, filepath.Join(t.TempDir(), "new.etcd"))
	require.NoError(t, b.Open(soon(t)))
	assert.True(t, asked(b))
	_, err := b.client(t).MemberAddAsLearner(soon(t), []string{freeURLText(t)})
	require.NoError(t, err)
	_, err = b.Close()
	require.NoError(t, err)
	again := reopened(t, b.config)
	assert.True(t, asked(again))
	assert.Contains(t, again.log.String(), "became leader")
}

func freeURLText(t *testing.T) string {
	t.Helper()
	url := freeURL(t)
	return url.String()
}

// What the log has is applied entry by entry: on the way the member is the only voter once more.
func TestALogThatGoesOnToASecondVoterLetsNobodyLeadAtOnce(t *testing.T) {
	b := newBench(t, filepath.Join(t.TempDir(), "new.etcd"))
	require.NoError(t, b.Open(soon(t)))
	_, err := b.client(t).MemberAdd(soon(t), []string{freeURLText(t)})
	require.NoError(t, err)
	_, _ = b.Close() // which no quorum takes part in
	again := reopened(t, b.config)
	assert.False(t, asked(again))
	assert.NotContains(t, again.log.String(), "became leader")
}

func TestARemovedMemberIsNotToldToLead(t *testing.T) {
	members := threeWith(t, member.Maintenance{}, func(c *embed.Config) { c.StrictReconfigCheck = false })
	defer members[0].Close()
	removed := members[2]
	members[2] = newBench(t, t.TempDir()) // to be closed in its place
	_, err := members[0].client(t).MemberRemove(soon(t), uint64(removed.ID()))
	require.NoError(t, err)
	require.Error(t, removed.Watch(soon(t)))
	_, _ = removed.Close()
	assert.False(t, asked(reopened(t, removed.config)))
}
