package terminal

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/readiness/status"
)

func printed(t *testing.T, b *status.Backup) string {
	told := document()
	told.Backup = b
	var out bytes.Buffer
	require.NoError(t, NewPrinter(&out).Print(told))
	return out.String()
}

func TestBackupsThatAreWellSaySoInAFewLines(t *testing.T) {
	now := time.Now()
	out := printed(t, &status.Backup{
		Store: "s3://b/main", Role: "writes", Revision: 90, SpoolLimit: 1 << 30, StoredBytes: 5 << 30, NextFull: now.Add(time.Hour),
		Window:       &status.BackupWindow{FromRevision: 7, ToRevision: 90, From: now.Add(-time.Hour), To: now},
		LastFull:     &status.BackupFull{Revision: 80, At: now.Add(-time.Minute), Bytes: 3 << 20, Reason: "schedule"},
		LastVerified: &status.BackupProof{Revision: 80, At: now.Add(-time.Minute), Passed: true, Reason: "the hash is etcd's own"},
	})
	for _, line := range []string{
		`^backups +s3://b/main, this member writes$`, `^in the store +everything up to revision 90; 5.0 GiB in all$`, `^next full +` + at + `$`,
		`^can go back to +revisions 7 to 90, ` + at + ` to ` + at + `$`, `^last full +revision 80, 3.0 MiB, ` + at + `, 1m0s ago: schedule$`,
		`^last verified +revision 80, ` + at + `, 1m0s ago: the hash is etcd's own$`,
	} {
		assert.Regexp(t, "(?m)"+line, out)
	}
	assert.NotContains(t, out, "backup trouble")
	assert.NotContains(t, out, "spool", "nothing waits")
}

func TestWhatWentWrongOnceIsSaidToHaveDoneSoOnce(t *testing.T) {
	assert.Contains(t, printed(t, &status.Backup{Trouble: &status.BackupError{Since: time.Now(), Times: 1, Message: "away"}}), "0s ago, once\n")
}

func TestBackupsInTroubleSayWhatIsWrongAndHowFarTheyAreBehind(t *testing.T) {
	now := time.Now()
	out := printed(t, &status.Backup{
		Store: "s3://b/main", Role: "waits", Revision: 90, BehindRevisions: 5, BehindSeconds: 61, SpoolBytes: 2 << 20, SpoolLimit: 1 << 30,
		LastVerified: &status.BackupProof{Revision: 80, At: now.Add(-time.Hour), Reason: "the hash is another one"},
		Trouble:      &status.BackupError{Since: now.Add(-time.Minute), Times: 4, Message: "the store is away", NextTry: now.Add(30 * time.Second)},
	})
	for _, line := range []string{
		`^backup trouble +the store is away\n +since ` + at + `, 1m0s ago, 4 times, next try within (30|29)s$`,
		`^in the store +up to revision 90; 5 behind, for 1m1s$`, `^spool +2.0 MiB of 1.0 GiB wait on the volume$`,
		`^last verified +FAILED at revision 80, ` + at + `, 1h0m0s ago: the hash is another one$`,
	} {
		assert.Regexp(t, "(?m)"+line, out)
	}
}

func TestAFullInTheMakingSaysHowFarItIs(t *testing.T) {
	run := &status.BackupRun{Reason: "schedule", Since: time.Now(), Doing: "copies the database"}
	assert.Regexp(t, `(?m)^full in the making +copies the database: schedule$`, printed(t, &status.Backup{FullRunning: run}))
	run.Doing, run.Sent, run.Of, run.LeftSeconds = "stores the copy", 1<<30, 3<<30, 61
	assert.Regexp(t, `(?m)^full in the making +stores the copy, 1.0 GiB of 3.0 GiB, 1m1s left: schedule$`, printed(t, &status.Backup{FullRunning: run}))
}

func TestBackupsThatWereNeverVerifiedSaySo(t *testing.T) {
	assert.Regexp(t, `(?m)^last verified +never$`, printed(t, &status.Backup{Store: "file:///b", Role: "watches"}))
	assert.NotContains(t, printed(t, nil), "backup")
}
