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

// A serverTest is a member whose backups are in an object store, together with the states that a restore must yield.
type serverTest struct {
	*member
	intermediate   int64 // a revision before the latest one
	atIntermediate state // state at this revision
	latest         state
}

// The test performs a user's tasks one after another, from the first write to running etcd on restored data, including
// a kill and the loss of the volume.
func TestServers_backupAndRestore(t *testing.T) {
	onEachCloud(t, func(t *testing.T, c cloud) {
		service := c.start(t)
		service.make(t, "bucket")
		s := &serverTest{member: service.member(t, "bucket")}
		run := s.backUp()
		s.runCommands()
		s.stop(run)
		s.kill()
		s.exportAndRestore("latest", s.latest)
		s.exportAndRestore(fmt.Sprint("revision:", s.intermediate), s.atIntermediate)
		s.loseVolume()
		s.requireRestoredElsewhere()
	})
}

func (s *serverTest) backUp() *harness.Run {
	s.T.Helper()
	run := s.StartReady()
	s.writeAllKinds()
	s.intermediate = s.write("between", "1")
	s.atIntermediate = now(s.Pod)
	run.AwaitStored(s.intermediate)
	awaitBackupStatus(run, "a full snapshot has passed its test restore", func(b facts.Backups) bool { return b.LastVerification != nil && b.LastVerification.Passed })
	return run
}

// runCommands runs the backup commands without --backup-store. They get the store from the running member.
func (s *serverTest) runCommands() {
	s.T.Helper()
	assert.Contains(s.T, s.command("backup", "list"), "last verified   yes")
	assert.Contains(s.T, s.command("backup", "now"), "uploaded full snapshot")
	assert.Contains(s.T, s.command("backup", "verify"), "restored revision")
	assert.Contains(s.T, s.command("backup", "verify", "--to=revision:"+fmt.Sprint(s.intermediate)), fmt.Sprintf("restored revision %d", s.intermediate))
	assert.Contains(s.T, s.command("backup", "prune", "--dry-run"), "keep")
}

// stop stops the program and requires that it has uploaded all writes.
func (s *serverTest) stop(run *harness.Run) {
	s.T.Helper()
	last := s.write("last", "just before the stop")
	run.Shutdown()
	require.GreaterOrEqual(s.T, s.head(s.T), last)
}

// kill kills the program and requires that the next run continues the chain.
func (s *serverTest) kill() {
	s.T.Helper()
	run := s.StartReady()
	run.AwaitStored(s.write("killed", "stored"))
	s.write("killed", "perhaps not")
	run.Kill()
	again := s.StartReady()
	s.write("killed", "and restarted")
	s.latest = now(s.Pod)
	again.Shutdown()
	require.Len(s.T, s.requireSound(s.T), 1)
	require.Equal(s.T, s.latest, s.keys(s.T, targetLatest))
}

// exportAndRestore exports a snapshot, restores it with etcdutl, and requires that etcd then serves the wanted keys.
func (s *serverTest) exportAndRestore(to string, want state) {
	s.T.Helper()
	file := s.export(to)
	assert.Equal(s.T, want, ofSnapshot(s.T, file), to)
	again := restored(s.T, file)
	run := again.StartReady()
	assert.Equal(s.T, want, now(again), "etcd serves the exported keys")
	run.Shutdown()
}

// loseVolume deletes the volume, and requires that the next run restores it and continues the backups in a new
// generation.
func (s *serverTest) loseVolume() {
	s.T.Helper()
	require.NoError(s.T, os.RemoveAll(s.Volume))
	run := s.StartReady()
	run.AwaitLine(harness.Line{"message": "the volume is empty; the cluster is restored to revision", "level": "warn"})
	assert.Equal(s.T, s.latest, now(s.Pod))
	last := s.write("after", "the loss of the volume")
	s.latest = now(s.Pod)
	run.AwaitStored(last)
	run.Shutdown()
	head, err := s.archive(s.T).Head(s.T.Context(), 2)
	require.NoError(s.T, err)
	assert.GreaterOrEqual(s.T, head.Revision(), last, "the new generation contains the write")
	assert.Equal(s.T, s.latest, s.keys(s.T, archive.Target{Generation: 2}))
}

// requireRestoredElsewhere restores the backups to the data directory of another pod, and requires that etcd then
// serves the latest keys.
func (s *serverTest) requireRestoredElsewhere() {
	s.T.Helper()
	elsewhere := harness.NewStandalonePod(s.T, nil)
	config := elsewhere.Flags[1]
	require.True(s.T, strings.HasPrefix(config, "--etcd-config-file="))
	s.command("restore", s.flag(), "--to=latest", "--data-dir="+elsewhere.DataDir(), config)
	run := elsewhere.StartReady()
	assert.Equal(s.T, s.latest, now(elsewhere))
	run.Shutdown()
}
