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

// A backup that cannot be restored is detected, reported, preserved and replaced.
func TestDamagedFullSnapshot_isReplaced(t *testing.T) {
	t.Parallel()
	m := newMember(t, "--backup-full-schedule=0 0 1 1 *") // never due during the test
	run := m.StartReady()
	run.AwaitStored(m.write("key", "value"))
	awaitBackupStatus(run, "the full is verified", func(b facts.Backups) bool { return b.LastVerification != nil && b.LastVerification.Passed })
	run.Shutdown()
	first := m.generation(t).Fulls[0]
	harness.CorruptFile(t, filepath.Join(m.dir, "gen", "000001", "full", first.Name(), "data"), 100, 16)
	_, _, code := m.Begin("backup", "verify", m.flag()).Wait()
	require.Equal(t, 70, code)

	again := m.StartReady()
	awaitBackupStatus(again, "it is told", func(b facts.Backups) bool { return b.LastVerification != nil && !b.LastVerification.Passed })
	awaitBackupStatus(again, "another one is made, and restored to test it", func(b facts.Backups) bool {
		return b.LastFullSnapshot != nil && b.LastFullSnapshot.At.After(first.Time) && b.LastVerification != nil && b.LastVerification.Passed && b.LastVerification.Revision == b.LastFullSnapshot.Revision
	})
	assert.Contains(t, backupStatus(again).LastFullSnapshot.Reason, "test restore")
	again.Shutdown()
	kept := m.generation(t)
	require.Len(t, kept.Fulls, 2)
	assert.Equal(t, first.Name(), kept.Fulls[0].Name(), "the damaged full snapshot is not deleted")
	assert.Equal(t, "value", ofSnapshot(t, m.export("latest"))["key"])
}

// --backup-interval is the time between consecutive uploads: it does not delay the first one.
func TestFirstWriteAfterIdleTime_isUploadedAtOnce(t *testing.T) {
	t.Parallel()
	m := newMember(t, "--backup-interval=5m")
	run := m.StartReady()
	awaitBackupStatus(run, "there is a full", func(b facts.Backups) bool { return b.LastFullSnapshot != nil })
	watch := harness.StartWatch()
	run.AwaitStored(m.write("key", "value"))
	assert.Less(t, watch.Duration(), time.Minute)
	run.Shutdown()
}
