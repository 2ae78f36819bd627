package backups_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/facts"
	"etcd-wrapper/cmd/suites/harness"
)

// A serverTest performs user operations on a member whose backups are in a cloud store.
type serverTest struct {
	*member
	then       int64 // an intermediate revision; at is the state at that revision
	at, latest state
}

// The test covers everything that a user does, from the first write to running a stock etcd on the exported data,
// including kills and the loss of the volume.
func TestServers_backupAndRestore(t *testing.T) {
	onEachCloud(t, func(t *testing.T, c cloud) {
		service := c.start(t)
		service.make(t, "bucket")
		s := &serverTest{member: service.member(t, "bucket")}
		run := s.isBackedUp()
		s.runCommands()
		s.isStopped(run)
		s.isKilled()
		s.isExported("latest", s.latest)
		s.isExported(fmt.Sprint("revision:", s.then), s.at)
		s.losesItsVolume()
		s.requireRestoredElsewhere()
	})
}

func (s *serverTest) isBackedUp() *harness.Run {
	s.T.Helper()
	run := s.StartReady()
	s.live()
	s.then = s.write("between", "1")
	s.at = now(s.Pod)
	run.AwaitStored(s.then)
	awaitBackupStatus(run, "a full snapshot was test-restored", func(b facts.Backups) bool { return b.LastVerification != nil && b.LastVerification.Passed })
	return run
}

// runCommands runs the backup commands while the member is running, because they use the member's store settings.
func (s *serverTest) runCommands() {
	s.T.Helper()
	assert.Contains(s.T, s.visit("backup", "list"), "last verified   yes")
	assert.Contains(s.T, s.visit("backup", "now"), "uploaded full snapshot")
	assert.Contains(s.T, s.visit("backup", "verify"), "restored revision")
	assert.Contains(s.T, s.visit("backup", "verify", "--to=revision:"+fmt.Sprint(s.then)), fmt.Sprintf("restored revision %d", s.then))
	assert.Contains(s.T, s.visit("backup", "prune", "--dry-run"), "keep")
}

// isStopped stops the program and requires that the remaining writes are uploaded.
func (s *serverTest) isStopped(run *harness.Run) {
	s.T.Helper()
	last := s.write("last", "just before the end")
	run.Shutdown()
	require.GreaterOrEqual(s.T, s.head(s.T), last)
}

// isKilled kills the program and requires that the next run continues the chain.
func (s *serverTest) isKilled() {
	s.T.Helper()
	run := s.StartReady()
	run.AwaitStored(s.write("killed", "stored"))
	s.write("killed", "perhaps not")
	run.Kill()
	again := s.StartReady()
	s.write("killed", "and gone on")
	s.latest = now(s.Pod)
	again.Shutdown()
	require.Len(s.T, s.requireSound(s.T), 1)
	require.Equal(s.T, s.latest, s.keys(s.T, targetLatest))
}

// isExported exports a snapshot and restores it with etcdutl.
func (s *serverTest) isExported(to string, want state) {
	s.T.Helper()
	file := s.export(to)
	assert.Equal(s.T, want, ofSnapshot(s.T, file), to)
	again := restored(s.T, file)
	run := again.StartReady()
	assert.Equal(s.T, want, now(again), "etcd serves the exported keys")
	run.Shutdown()
}

// losesItsVolume requires that an empty volume is restored from the store and that backups continue.
func (s *serverTest) losesItsVolume() {
	s.T.Helper()
	require.NoError(s.T, os.RemoveAll(s.Volume))
	run := s.StartReady()
	run.AwaitLine(harness.Line{"message": "the volume is empty; the cluster is restored to revision", "level": "warn"})
	assert.Equal(s.T, s.latest, now(s.Pod))
	last := s.write("after the loss", "of the volume")
	s.latest = now(s.Pod)
	run.AwaitStored(last)
	run.Shutdown()
	head, err := s.archive(s.T).Head(s.T.Context(), 2)
	require.NoError(s.T, err)
	assert.GreaterOrEqual(s.T, head.Revision(), last, "the restored member has a new generation")
	assert.Equal(s.T, s.latest, s.keys(s.T, archive.Target{Generation: 2}))
}

// requireRestoredElsewhere restores into a new data directory and requires that its content is correct.
func (s *serverTest) requireRestoredElsewhere() {
	s.T.Helper()
	elsewhere := harness.NewStandalonePod(s.T, nil)
	config := elsewhere.Flags[1]
	require.True(s.T, strings.HasPrefix(config, "--etcd-config-file="))
	s.visit("restore", s.flag(), "--to=latest", "--data-dir="+elsewhere.DataDir(), config)
	run := elsewhere.StartReady()
	assert.Equal(s.T, s.latest, now(elsewhere))
	run.Shutdown()
}
