package recovery_test

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"etcd-wrapper/cmd/suites/harness"
)

// requireRestored requires that a new cluster contains all stored revisions, and that it makes clients of the old
// cluster list the keys again.
func (c *threeMembers) requireRestored() {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), harness.Patience)
	defer cancel()
	c.requireVoters()
	reply, err := c.etcd.Get(ctx, "", clientv3.WithPrefix())
	require.NoError(c.t, err)
	require.NotEqual(c.t, c.id, reply.Header.ClusterId, "the cluster ID must be new")
	require.Greater(c.t, reply.Header.Revision, c.ledger.highest(), "the restored cluster must skip all revisions of the old one")
	_, err = c.etcd.Get(ctx, "key", clientv3.WithRev(c.ledger.highest()))
	require.ErrorIs(c.t, err, rpctypes.ErrCompacted)
	harness.Eventually(c.t, "the informer has listed again", func() bool { return c.informer.listed() > c.listings })
	for _, m := range c.members {
		c.readRestored(m)
	}
	at := c.restored
	require.GreaterOrEqual(c.t, at, c.stored, "all stored revisions must be restored")
	wrong, undone := c.ledger.verify(lasting(reply.Kvs), at, true)
	require.Empty(c.t, wrong)
	c.id, c.stored = reply.Header.ClusterId, at
	sum.add(func(f *figures) { f.undone, f.restores = f.undone+undone, f.restores+1 })
}

// readRestored records the revision that a member reports as restored. All members must find the same revision in the
// store.
func (c *threeMembers) readRestored(m *member) {
	for _, line := range m.run.Log.Matching(harness.Line{"message": "recovery: "}) {
		if revision, has := line["restored_revision"].(float64); has {
			c.restored = max(c.restored, int64(revision))
		}
	}
}

// lasting returns all keys except those that may expire soon, which the ledger does not contain.
func lasting(kvs []*mvccpb.KeyValue) contents {
	have := contents{}
	for _, kv := range kvs {
		if !strings.HasPrefix(string(kv.Key), "brief/") {
			have[string(kv.Key)] = kv
		}
	}
	return have
}

// verify compares the data with the clients' ledger. Clients must not write during the comparison.
func (c *threeMembers) verify() {
	c.t.Helper()
	c.requireVoters()
	ctx, cancel := context.WithTimeout(c.t.Context(), harness.Patience)
	defer cancel()
	reply, err := c.etcd.Get(ctx, "", clientv3.WithPrefix())
	require.NoError(c.t, err)
	if c.id == 0 {
		c.id = reply.Header.ClusterId
	}
	require.Equal(c.t, c.id, reply.Header.ClusterId, "the cluster ID must not change")
	require.GreaterOrEqual(c.t, reply.Header.Revision, c.ledger.highest(), "the revision must not decrease")
	wrong, undone := c.ledger.verify(lasting(reply.Kvs), reply.Header.Revision, false)
	require.Empty(c.t, wrong)
	require.Zero(c.t, undone)
	c.ledger.observe(reply.Header.Revision)
	c.requireEqual()
	c.informer.requireConsistent()
	c.listings = c.informer.listed()
	c.removeCopies()
}

// requireVoters waits until all three members are voters.
func (c *threeMembers) requireVoters() {
	c.t.Helper()
	harness.Eventually(c.t, "the cluster has three voters", func() bool {
		ctx, cancel := context.WithTimeout(c.t.Context(), patience)
		defer cancel()
		list, err := c.etcd.MemberList(ctx)
		if err != nil || len(list.Members) != 3 {
			return false
		}
		for _, m := range list.Members {
			if m.IsLearner || m.Name == "" {
				return false
			}
		}
		return true
	})
}

// requireEqual requires that all members have the same data. etcd's hash covers all revisions since the last
// compaction.
func (c *threeMembers) requireEqual() {
	c.t.Helper()
	var seen []string
	defer func() {
		if c.t.Failed() {
			c.t.Log("last responses of the members:", seen)
		}
	}()
	harness.Eventually(c.t, "all members have the same data", func() bool {
		ctx, cancel := context.WithTimeout(c.t.Context(), patience)
		defer cancel()
		seen = nil
		hashes := map[[3]int64]int{}
		for _, m := range c.members {
			reply, err := c.etcd.HashKV(ctx, m.Endpoint(), 0)
			seen = append(seen, fmt.Sprint(m.Config["name"], " ", reply, err))
			if err != nil {
				return false
			}
			hashes[[3]int64{reply.Header.Revision, reply.CompactRevision, int64(reply.Hash)}]++
		}
		return len(hashes) == 1
	})
}

// removeCopies removes all preserved copies, because each is as large as the data, and requires that no restore has
// left unfinished files behind.
func (c *threeMembers) removeCopies() {
	c.t.Helper()
	for _, m := range c.members {
		for _, kept := range preservedCopies(m.Pod) {
			require.NoError(c.t, os.RemoveAll(kept))
		}
		assert.Empty(c.t, unfinishedFiles(m.Pod), "unfinished files")
	}
}
