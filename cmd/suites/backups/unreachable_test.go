package backups_test

import (
	"context"
	"crypto/rand"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/facts"
	"etcd-wrapper/cmd/suites/harness"
)

// compact writes a key and compacts etcd up to the revision of that write.
func (m *member) compact() {
	m.T.Helper()
	upTo := m.write("compacted", "up to here")
	ctx, cancel := context.WithTimeout(m.T.Context(), harness.Patience)
	defer cancel()
	_, err := m.Etcd().Compact(ctx, upTo, clientv3.WithCompactPhysical())
	require.NoError(m.T, err)
}

func TestUnreachableStore_spoolSurvivesKill(t *testing.T) {
	t.Parallel()
	m := newMember(t)
	run := m.StartReady()
	run.AwaitStored(m.write("key", "in the store"))
	rename(t, m.mount, m.mount+".away")
	first := m.write("key", "queued")
	awaitBackupStatus(run, "the change is in the spool and the status shows the problem", func(b facts.Backups) bool { return b.SpoolBytes > 0 && hasProblem(b) })
	m.compact()
	m.write("key", "also queued")
	m.compact()
	awaitBackupStatus(run, "the status shows that further changes are queued", func(b facts.Backups) bool { return b.LagRevisions >= 4 && b.LagSeconds > 0 })
	run.Kill()

	again := m.StartReady()
	m.write("key", "from another run")
	m.compact()
	rename(t, m.mount+".away", m.mount)
	awaitBackupStatus(again, "all changes are uploaded", recovered)
	again.Shutdown()
	chains := m.requireSound(t)
	require.Len(t, chains, 1, "the chain has no gap")
	assert.Equal(t, "queued", m.keys(t, archive.Target{Revision: first})["key"], "the store contains the revision that etcd has compacted")
	assert.Equal(t, "from another run", m.keys(t, targetLatest)["key"])
}

// If the spool is full and etcd compacts changes that have not been captured, the program must report the gap and
// start a new chain with a full snapshot.
func TestFullSpool_startsNewChain(t *testing.T) {
	t.Parallel()
	requireWholeFlag(t)
	m := newMember(t, "--backup-spool-limit=32Mi")
	run := m.StartReady()
	run.AwaitStored(m.write("key", "in the store"))
	rename(t, m.mount, m.mount+".away")
	noise := make([]byte, 1<<20) // random, because compression would shrink any other content
	for range 48 {
		_, err := rand.Read(noise)
		require.NoError(t, err)
		m.write("noise", string(noise))
	}
	harness.Eventually(t, "the log reports that changes cannot be captured", func() bool {
		return len(run.Log.FindText("cannot capture changes")) > 0
	})
	awaitBackupStatus(run, "the spool is almost full but within its limit", func(b facts.Backups) bool { return b.SpoolBytes > 20<<20 && b.SpoolBytes <= b.SpoolLimit })
	m.compact()
	last := m.write("key", "after the gap")
	rename(t, m.mount+".away", m.mount)
	run.AwaitStored(last)
	awaitBackupStatus(run, "backups continue", recovered)
	assert.NotEmpty(t, run.Log.FindText("making a full snapshot"), "the log reports that a new chain starts")
	run.Shutdown()
	chains := m.requireSound(t)
	require.Len(t, chains, 2)
	assert.Contains(t, chains[1].Fulls[0].Reason, "etcd was compacted at revision ")
	assert.Equal(t, "after the gap", m.keys(t, targetLatest)["key"])
}
