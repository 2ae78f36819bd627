package backups_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/facts"
	"etcd-wrapper/cmd/backups"
	"etcd-wrapper/cmd/suites/harness"
)

// A member is a pod whose etcd is backed up.
type member struct {
	*harness.Pod
	depot
}

// newMember returns a member whose store is a directory. Recovery is disabled, because it has a suite of its own.
func newMember(t *testing.T, flags ...string) *member {
	t.Helper()
	return newMemberOn(t, newDepot(t), append([]string{"--recover=never"}, flags...)...)
}

func newMemberOn(t *testing.T, d depot, flags ...string) *member {
	t.Helper()
	m := &member{Pod: harness.NewStandalonePod(t, nil), depot: d}
	m.Flags = append(append(m.Flags, m.flag(), "--backup-interval=200ms"), flags...)
	return m
}

// backupStatus returns the backup section of the status.
func backupStatus(run *harness.Run) facts.Backups {
	run.T.Helper()
	if backup := run.Status().Backup; backup != nil {
		return *backup
	}
	return facts.Backups{}
}

// awaitBackupStatus waits until the backup section of the status satisfies a condition.
func awaitBackupStatus(run *harness.Run, what string, condition func(facts.Backups) bool) {
	run.T.Helper()
	harness.Eventually(run.T, what, func() bool { return condition(backupStatus(run)) })
}

// write puts a key and returns the revision of the write.
func (m *member) write(key, value string) int64 {
	m.T.Helper()
	ctx, cancel := context.WithTimeout(m.T.Context(), harness.Patience)
	defer cancel()
	reply, err := m.Etcd().Put(ctx, key, value)
	require.NoError(m.T, err)
	return reply.Header.Revision
}

// command runs a command, which must succeed, and returns its output.
func (m *member) command(args ...string) (out string) {
	m.T.Helper()
	out, log, status := m.Begin(args...).Wait()
	require.Zero(m.T, status, "%v: %s", args, log)
	return out
}

// list returns the output of "backup list".
func (m *member) list() (listing backups.Listing) {
	m.T.Helper()
	require.NoError(m.T, json.Unmarshal([]byte(m.command("backup", "list", m.flag(), "-o", "json")), &listing))
	return listing
}

// export runs "backup export" and returns the path of the snapshot.
func (m *member) export(to string) string {
	m.T.Helper()
	file := filepath.Join(m.T.TempDir(), "snapshot")
	m.command("backup", "export", m.flag(), "--to="+to, file)
	return file
}

// restored restores a snapshot with etcdutl and returns a pod with the resulting data.
func restored(t *testing.T, snapshot string) *harness.Pod {
	t.Helper()
	p := harness.NewStandalonePod(t, nil)
	_, log, status := p.Begin("etcdutl", "snapshot", "restore", snapshot, "--data-dir="+p.DataDir(),
		"--name=etcd-main-0", "--initial-cluster=etcd-main-0="+p.PeerURL(), "--initial-advertise-peer-urls="+p.PeerURL()).Wait()
	require.Zero(t, status, log)
	return p
}

// rename moves a folder.
func rename(t *testing.T, from, to string) {
	t.Helper()
	require.NoError(t, os.Rename(from, to))
}
