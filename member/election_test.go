package member_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"etcd-wrapper/member/maintenance"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/server/v3/embed"
)

// These tests do not run in parallel, because etcd publishes only the raft status of the member that was started
// last.

// unhurried returns a member with an election timeout that is longer than the test.
func unhurried(t *testing.T, dir string) *bench {
	t.Helper()
	cfg := config(t, dir)
	cfg.TickMs, cfg.ElectionMs = 10_000, 50_000 // etcd's longest
	return benchWith(t, cfg)
}

func TestElectSelf_singleMember(t *testing.T) {
	dir := newDir(t)
	for _, start := range []string{"first", "again"} {
		b := unhurried(t, dir)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		require.NoError(t, b.Open(ctx), start)
		cancel()
		_, err := b.client(t).Put(soon(t), "key", "value")
		require.NoError(t, err)
		b.mustClose(t)
	}
}

// The log ends with a second voter that has never started, so no member may campaign.
func TestElectSelf_secondVoterInTheLog(t *testing.T) {
	t.Parallel()
	b := openBench(t)
	dir := b.config.Dir
	other := freeURL(t)
	_, err := b.client(t).MemberAdd(soon(t), []string{other.String()})
	require.NoError(t, err)
	b.mustClose(t)

	again := newBench(t, dir)
	ctx, cancel := context.WithCancel(t.Context())
	opened := make(chan error, 1)
	go func() { opened <- again.Open(ctx) }()
	require.Eventually(t, func() bool { return strings.Count(again.log.String(), "is starting a new") >= 2 }, patience, tick)
	cancel()
	require.Error(t, <-opened)
	again.mustClose(t)
	assert.False(t, strings.Contains(again.log.String(), "MsgTimeoutNow"), "it was asked to campaign")
}

// raft reads its unapplied entries before it campaigns. etcd has already applied these entries and removed most of
// them from memory.
func TestElectSelf_longLog(t *testing.T) {
	dir := newDir(t)
	cfg := config(t, dir)
	cfg.SnapshotCatchUpEntries = 1
	b := benchWith(t, cfg)
	require.NoError(t, b.Open(soon(t)))
	client := b.client(t)
	for range 500 {
		_, err := client.Put(soon(t), "key", "value")
		require.NoError(t, err)
	}
	b.mustClose(t)
	for range 20 {
		of := config(t, dir)
		of.SnapshotCatchUpEntries = 1
		again := benchWith(t, of)
		require.NoError(t, again.Open(soon(t)))
		again.mustClose(t)
	}
}

// A removed member must not campaign in the cluster that removed it.
func TestElectSelf_removedMember(t *testing.T) {
	t.Parallel()
	members := threeWith(t, maintenance.Options{}, func(c *embed.Config) { c.StrictReconfigCheck = false })
	defer members[0].Close()
	removed := members[2]
	members[2] = newBench(t, t.TempDir()) // closed by the cleanup instead of the removed member
	_, err := members[0].client(t).MemberRemove(soon(t), uint64(removed.ID()))
	require.NoError(t, err)
	require.Error(t, removed.Watch(soon(t)))
	_, _ = removed.Close()
	cfg := config(t, removed.config.Dir)
	cfg.Name, cfg.InitialCluster = removed.config.Name, removed.config.InitialCluster
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = removed.config.ListenPeerUrls, removed.config.AdvertisePeerUrls
	again := benchWith(t, cfg)
	require.Error(t, again.Open(soon(t)))
	_, _ = again.Close()
	assert.False(t, strings.Contains(again.log.String(), "MsgTimeoutNow"), "it was asked to campaign")
}
