package backups_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"etcd-wrapper/backup/restore"
	"etcd-wrapper/cmd/suites/harness"
)

// writeAllKinds changes etcd's keys with every kind of request: puts, deletions of ranges, transactions and leases.
func (m *member) writeAllKinds() {
	m.T.Helper()
	etcd, ctx := m.Etcd(), m.T.Context()
	for i := range 20 {
		m.write(fmt.Sprintf("key-%02d", i), "first")
	}
	_, err := etcd.Delete(ctx, "key-05", clientv3.WithRange("key-08"))
	require.NoError(m.T, err)
	_, err = etcd.Txn(ctx).Then(clientv3.OpPut("key-01", "by a transaction"), clientv3.OpDelete("key-02"), clientv3.OpPut("new", "key")).Commit()
	require.NoError(m.T, err)
	lease, err := etcd.Grant(ctx, 7200)
	require.NoError(m.T, err)
	_, err = etcd.Put(ctx, "leased", "key", clientv3.WithLease(lease.ID))
	require.NoError(m.T, err)
}

// now returns the keys that etcd currently contains.
func now(p *harness.Pod) state {
	p.T.Helper()
	reply, err := p.Etcd().Get(p.T.Context(), "", clientv3.WithPrefix())
	require.NoError(p.T, err)
	had := state{}
	for _, kv := range reply.Kvs {
		had[string(kv.Key)] = string(kv.Value)
	}
	return had
}

// hash returns etcd's KV hash at the given revision.
func hash(p *harness.Pod, revision int64) uint32 {
	p.T.Helper()
	reply, err := p.Etcd().HashKV(p.T.Context(), p.Endpoint(), revision)
	require.NoError(p.T, err)
	return reply.Hash
}

// requireHash requires that a snapshot has the same KV hash that etcd returned for the revision.
func requireHash(t *testing.T, want uint32, snapshot string, revision int64) {
	t.Helper()
	hash, err := restore.HashKV(t.Context(), snapshot, restore.HashRequest{Revision: revision})
	require.NoError(t, err)
	require.Equal(t, want, hash, "hash at revision %d", revision)
}

func TestStop_uploadsAllAcknowledgedWrites(t *testing.T) {
	t.Parallel()
	m := newMember(t)
	run := m.StartReady()
	m.writeAllKinds()
	between := m.write("between", "1")
	then, thenHash := now(m.Pod), hash(m.Pod, between)
	m.write("between", "2")
	last := m.write("last", "just before the stop")
	latest, latestHash := now(m.Pod), hash(m.Pod, last)
	run.Shutdown()
	assert.Len(t, run.Log.FindText("backups: all acknowledged writes are in the store"), 1)

	assert.Equal(t, last, m.head(t))
	require.Len(t, m.requireSound(t), 1)
	snapshot := m.export("latest")
	assert.Equal(t, latest, ofSnapshot(t, snapshot))
	requireHash(t, latestHash, snapshot, last)
	older := m.export(fmt.Sprint("revision:", between))
	assert.Equal(t, then, ofSnapshot(t, older))
	requireHash(t, thenHash, older, between)

	p := restored(t, snapshot)
	again := p.StartReady()
	assert.Equal(t, latest, now(p))
	assert.Equal(t, latestHash, hash(p, last))
	leases, err := p.Etcd().Leases(t.Context())
	require.NoError(t, err)
	assert.Len(t, leases.Leases, 1)
	again.Shutdown()
}

func TestBackupCommands(t *testing.T) {
	t.Parallel()
	m := newMember(t)
	run := m.StartReady()
	run.AwaitStored(m.write("key", "value"))
	_, log, code := m.Begin("backup", "now").Wait()
	require.Zero(t, code, log)
	seen := m.list()
	require.Len(t, seen.Generations, 1)
	assert.Len(t, seen.Generations[0].Fulls, 2)
	assert.Len(t, seen.Generations[0].Windows, 1, "the second full snapshot does not start a new chain")
	_, page := run.Request("GET", "/metrics")
	assert.Contains(t, page, "etcd_wrapper_backup_problem 0")
	out, log, code := m.Begin("status", "-v").Wait()
	require.Zero(t, code, log)
	assert.Contains(t, out, "file://"+m.dir)
	run.Shutdown()

	scratch := t.TempDir()
	m.Env = append(m.Env, "TMPDIR="+scratch)
	assert.Contains(t, m.command("backup", "verify", m.flag()), "restored revision")
	assert.Contains(t, m.command("backup", "list", m.flag()), "last verified   yes")
	assert.Contains(t, m.command("backup", "prune", m.flag(), "--backup-keep=points=24h"), "deleted 0 objects")
	left, err := os.ReadDir(scratch)
	require.NoError(t, err)
	assert.Empty(t, left)
}

func TestIdleCluster_sendsNoRequests(t *testing.T) {
	t.Parallel()
	m := newMember(t)
	run := m.StartReady()
	run.AwaitStored(m.write("key", "value"))
	harness.Eventually(t, "nothing is uploaded for a second", func() bool {
		before := len(m.generation(t).Objects)
		waitFor(run, 1)
		return len(m.generation(t).Objects) == before
	})
	run.Shutdown()
}

// waitFor waits until the given number of seconds has passed, as measured by a Watch.
func waitFor(run *harness.Run, seconds float64) {
	run.T.Helper()
	watch := harness.StartWatch()
	harness.Eventually(run.T, fmt.Sprintf("%g s have passed", seconds), func() bool { return watch.Duration().Seconds() > seconds })
}

func TestRestarts_continueTheChain(t *testing.T) {
	t.Parallel()
	m := newMember(t)
	for run := range 3 {
		m.StartAndStop("run", fmt.Sprint(run))
	}
	chains := m.requireSound(t)
	require.Len(t, chains, 1)
	assert.Len(t, chains[0].Fulls, 1)
	assert.Equal(t, state{"run": "2"}, m.keys(t, targetLatest))
}

func TestRestore_usersAndLeases(t *testing.T) {
	t.Parallel()
	m := newMember(t)
	run := m.StartReady()
	run.AwaitStored(m.write("key", "value")) // a full snapshot exists now, so subsequent changes go into segments
	etcd, ctx := m.Etcd(), t.Context()
	lease, err := etcd.Grant(ctx, 7200)
	require.NoError(t, err)
	_, err = etcd.Put(ctx, "leased", "key", clientv3.WithLease(lease.ID))
	require.NoError(t, err)
	_, err = etcd.UserAdd(ctx, "user", "secret")
	require.NoError(t, err)
	run.Shutdown()

	p := restored(t, m.export("latest"))
	again := p.StartReady()
	users, err := p.Etcd().UserList(ctx)
	require.NoError(t, err)
	assert.Equal(t, []string{"user"}, users.Users)
	kept, err := p.Etcd().TimeToLive(ctx, lease.ID, clientv3.WithAttachedKeys())
	require.NoError(t, err)
	assert.Equal(t, [][]byte{[]byte("leased")}, kept.Keys)
	again.Shutdown()
}

// If etcd has leases or users but no keys, a restart must continue the backups and must not look like a lost volume.
func TestRestart_withoutKeys(t *testing.T) {
	t.Parallel()
	m := newMemberOn(t, newDepot(t))
	for count := range 3 {
		run := m.StartReady()
		leases, err := m.Etcd().Leases(t.Context())
		require.NoError(t, err)
		require.Len(t, leases.Leases, count)
		_, err = m.Etcd().Grant(t.Context(), 7200)
		require.NoError(t, err)
		run.Shutdown()
		assert.Len(t, run.Log.FindText("backups: all acknowledged writes are in the store"), 1)
		m.generation(t) // fails if there is more than one generation
		preserved, err := filepath.Glob(m.DataDir() + ".aside-*")
		require.NoError(t, err)
		assert.Empty(t, preserved)
	}
}
