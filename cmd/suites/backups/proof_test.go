package backups_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/facts"
	"etcd-wrapper/cmd/suites/harness"
)

func TestDamagedFullSnapshot_isReplaced(t *testing.T) {
	t.Parallel()
	m := newMember(t, "--backup-full-schedule=0 0 1 1 *") // January 1: not due during the test
	run := m.StartReady()
	run.AwaitStored(m.write("key", "value"))
	awaitBackupStatus(run, "the full snapshot has passed its test restore", func(b facts.Backups) bool { return b.LastVerification != nil && b.LastVerification.Passed })
	run.Shutdown()
	assert.Equal(t, "verified", m.list().Generations[0].Fulls[0].Verified.Outcome)
	first := m.generation(t).Fulls[0]
	harness.CorruptFile(t, filepath.Join(m.dir, "gen", "000001", "full", first.Name(), "data"), 100, 16)
	out, log, code := m.Begin("backup", "verify", m.flag(), "-o", "json").Wait()
	require.Equal(t, 70, code)
	assert.Contains(t, out, `"outcome": "failed"`)
	assert.Contains(t, log, "the restore test failed")
	_, log, code = m.Begin("backup", "prune", m.flag(), "--backup-keep=points=24h").Wait()
	assert.Equal(t, 75, code)
	assert.Contains(t, log, "not deleting any backups")

	again := m.StartReady()
	awaitBackupStatus(again, "the status reports that the restore test failed", func(b facts.Backups) bool { return b.LastVerification != nil && !b.LastVerification.Passed })
	awaitBackupStatus(again, "a new full snapshot passes its test restore", func(b facts.Backups) bool {
		return b.LastFullSnapshot != nil && b.LastFullSnapshot.At.After(first.Time) && b.LastVerification != nil && b.LastVerification.Passed && b.LastVerification.Revision == b.LastFullSnapshot.Revision
	})
	assert.Contains(t, backupStatus(again).LastFullSnapshot.Reason, "restore test")
	again.Shutdown()
	kept := m.generation(t)
	require.Len(t, kept.Fulls, 2)
	assert.Equal(t, first.Name(), kept.Fulls[0].Name(), "the damaged full snapshot is not deleted")
	assert.Equal(t, "value", ofSnapshot(t, m.export("latest"))["key"])
}

// --backup-interval is the minimum time between two uploads. It must not delay the first upload after an idle period,
// so that a single write reaches the store immediately.
func TestFirstWriteAfterIdleTime_isUploadedAtOnce(t *testing.T) {
	t.Parallel()
	m := newMember(t, "--backup-interval=5m")
	run := m.StartReady()
	awaitBackupStatus(run, "the store contains a full snapshot", func(b facts.Backups) bool { return b.LastFullSnapshot != nil })
	watch := harness.StartWatch()
	run.AwaitStored(m.write("key", "value"))
	assert.Less(t, watch.Duration(), time.Minute)
	run.Shutdown()
}
