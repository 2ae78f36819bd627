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

// compact compacts etcd up to the latest revision.
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
	first := m.write("key", "waits")
	awaitBackupStatus(run, "the change is in the spool, and the problem is reported", func(b facts.Backups) bool { return b.SpoolBytes > 0 && hasProblem(b) })
	m.compact()
	m.write("key", "waits, too")
	m.compact()
	awaitBackupStatus(run, "more changes are queued", func(b facts.Backups) bool { return b.LagRevisions >= 4 && b.LagSeconds > 0 })
	run.Kill()

	again := m.StartReady()
	m.write("key", "from another run")
	m.compact()
	rename(t, m.mount+".away", m.mount)
	awaitBackupStatus(again, "all changes are uploaded", recovered)
	again.Shutdown()
	chains := m.requireSound(t)
	require.Len(t, chains, 1, "there is no gap after the compaction")
	assert.Equal(t, "waits", m.keys(t, archive.Target{Revision: first})["key"], "including compacted revisions")
	assert.Equal(t, "from another run", m.keys(t, targetLatest)["key"])
}

// If the queued changes exceed the spool and some of them are compacted, the program must report the gap and start a
// new chain with a full snapshot.
func TestFullSpool_startsNewChain(t *testing.T) {
	t.Parallel()
	requireWholeFlag(t)
	m := newMember(t, "--backup-spool-limit=32Mi")
	run := m.StartReady()
	run.AwaitStored(m.write("key", "in the store"))
	rename(t, m.mount, m.mount+".away")
	noise := make([]byte, 1<<20) // incompressible
	for range 48 {
		_, err := rand.Read(noise)
		require.NoError(t, err)
		m.write("noise", string(noise))
	}
	harness.Eventually(t, "the log announces the end of the chain", func() bool {
		return len(run.Log.FindText("cannot capture changes")) > 0
	})
	awaitBackupStatus(run, "the spool is full and within its limit", func(b facts.Backups) bool { return b.SpoolBytes > 20<<20 && b.SpoolBytes <= b.SpoolLimit })
	m.compact()
	last := m.write("key", "after the gap")
	rename(t, m.mount+".away", m.mount)
	run.AwaitStored(last)
	awaitBackupStatus(run, "backups continue", recovered)
	assert.NotEmpty(t, run.Log.FindText("making a full snapshot"), "the log says that the chain has ended")
	run.Shutdown()
	chains := m.requireSound(t)
	require.Len(t, chains, 2)
	assert.Contains(t, chains[1].Fulls[0].Reason, "gap: ")
	assert.Equal(t, "after the gap", m.keys(t, targetLatest)["key"])
}
