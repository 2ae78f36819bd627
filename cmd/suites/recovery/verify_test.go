package recovery_test

import (
	"context"
	"fmt"
	"math"
	"os"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"etcd-wrapper/cmd/suites/harness"
)

// verify compares the data with the clients' ledger. Clients must not write during the comparison.
func (c *cluster) verify(after *outcome) {
	c.T.Helper()
	have, revision, cluster := c.content()
	restored := c.id != "" && cluster != c.id
	at := revision
	if restored {
		at = c.restored
		c.requireNewHistory(revision)
		sum.add(func(f *figures) { f.restores++ })
	}
	if after != nil {
		c.requireAcknowledged(*after, restored, at)
	}
	require.GreaterOrEqual(c.T, revision, c.ledger.highest(), "the revision must not decrease")
	wrong, undone := c.ledger.verify(have, at, true)
	require.Empty(c.T, wrong)
	c.ledger.observe(revision)
	if restored {
		c.stored = at
	}
	c.id = cluster
	c.requireLeases(have)
	c.requireUser(at)
	c.informer.requireConsistent()
	c.listings = c.informer.listed()
	sum.add(func(f *figures) { f.undone += undone })
	c.removeCopies()
}

// content returns etcd's keys, except those that may expire soon, together with the revision and the cluster ID.
func (c *cluster) content() (have contents, revision int64, cluster string) {
	c.T.Helper()
	ctx, cancel := context.WithTimeout(c.T.Context(), harness.Patience)
	defer cancel()
	reply, err := c.etcd.Get(ctx, "", clientv3.WithPrefix())
	require.NoError(c.T, err)
	return lasting(reply.Kvs), reply.Header.Revision, fmt.Sprintf("%x", reply.Header.ClusterId)
}

// requireAcknowledged requires that the data at the given revision includes every write that must exist after the
// fault.
func (c *cluster) requireAcknowledged(after outcome, restored bool, at int64) {
	c.T.Helper()
	switch {
	case after.exactly != 0:
		require.True(c.T, restored)
		require.Equal(c.T, after.exactly, at, "the restored revision must be the requested one")
	case after.intact:
		require.False(c.T, restored, "an intact volume must not be restored")
	default:
		require.GreaterOrEqual(c.T, at, c.stored, "all stored revisions must be restored")
	}
}

// requireNewHistory requires that a restored cluster skips all revisions of the old one, and that requests and watches
// for such revisions fail, so that clients list the keys again.
func (c *cluster) requireNewHistory(revision int64) {
	c.T.Helper()
	ctx, cancel := context.WithTimeout(c.T.Context(), harness.Patience)
	defer cancel()
	seen := c.ledger.highest()
	require.Greater(c.T, revision, seen, "the restored cluster must skip all revisions of the old one")
	_, err := c.etcd.Get(ctx, "key", clientv3.WithRev(seen))
	require.ErrorIs(c.T, err, rpctypes.ErrCompacted)
	response, open := <-c.etcd.Watch(ctx, "key", clientv3.WithRev(seen+1))
	require.True(c.T, open)
	require.ErrorIs(c.T, response.Err(), rpctypes.ErrCompacted)
	harness.Eventually(c.T, "the informer has listed again", func() bool { return c.informer.listed() > c.listings })
}

// requireLeases checks that the leases of existing keys still exist and have more than half of their TTL left, and
// that keys with expired leases are deleted.
func (c *cluster) requireLeases(have contents) {
	c.T.Helper()
	ctx, cancel := context.WithTimeout(c.T.Context(), harness.Patience)
	defer cancel()
	leases := map[clientv3.LeaseID]bool{}
	for _, kv := range have {
		leases[clientv3.LeaseID(kv.Lease)] = kv.Lease != 0
	}
	for lease, has := range leases {
		if !has {
			continue
		}
		left, err := c.etcd.TimeToLive(ctx, lease)
		require.NoError(c.T, err)
		assert.Contains(c.T, []int64{longTTL, defaultTTL}, left.GrantedTTL)
		assert.Greater(c.T, left.TTL, left.GrantedTTL/2, "the remaining TTL must be more than half of the granted TTL")
	}
	harness.Eventually(c.T, "keys with expired leases are deleted, unless their lease was missing from the store and got a longer TTL", func() bool {
		reply, err := c.etcd.Get(ctx, "brief/", clientv3.WithRange("brief/9"))
		if err != nil {
			return false
		}
		for _, kv := range reply.Kvs {
			if left, err := c.etcd.TimeToLive(ctx, clientv3.LeaseID(kv.Lease)); err != nil || left.GrantedTTL < defaultTTL {
				return false
			}
		}
		return true
	})
}

// defaultTTL is the minimum TTL in seconds that a restore grants to a lease that is missing from the store.
const defaultTTL = 60

// requireUser requires that the user exists, unless the cluster was restored to a revision before the user was added.
func (c *cluster) requireUser(at int64) {
	c.T.Helper()
	if at < c.user {
		c.user = math.MaxInt64
		return
	}
	users, err := c.etcd.UserList(c.T.Context())
	require.NoError(c.T, err)
	require.Equal(c.T, []string{"user"}, users.Users)
}

// removeCopies removes all preserved copies except the newest one, because each is as large as the data, and requires
// that no restore has left unfinished files behind.
func (c *cluster) removeCopies() {
	c.T.Helper()
	all := preservedCopies(c.Pod)
	for _, kept := range all[:max(0, len(all)-1)] {
		require.NoError(c.T, os.RemoveAll(kept))
	}
	require.Empty(c.T, unfinishedFiles(c.Pod), "unfinished files")
}
