package recovery_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/archivetest"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/bootstrap/datadir"
	"etcd-wrapper/bootstrap/datadir/datadirtest"
	"etcd-wrapper/cmd/suites/harness"
)

// Results of successful starts.
const (
	starts         = "starts with its data"
	restores       = "is restored from the store"
	createsCluster = "creates a new cluster"
	waits          = "waits for the store"
	uncompared     = "starts with its data, and reports that it was not compared with the store"
	backupsFail    = "starts with its data, and reports that its backups fail"
)

// cases contains the cases for a single member that docs/restore.md describes: the state of the volume, the state of
// the store, and the result. A result is one of the constants above, or part of the error message with which a start
// fails.
var cases = []struct{ volume, store, result string }{
	{"valid", "this cluster's", starts},
	{"valid", "empty", starts},
	{"valid", "none", starts},
	{"valid", "unreachable", uncompared},
	{"valid", "another cluster's", "backups of another cluster are never restored to this member"},
	{"valid", "damaged", backupsFail},
	{"valid", "not trusted", backupsFail},
	{"without a cluster ID", "this cluster's", "the data does not record which cluster it belongs to"},
	{"without a cluster ID", "empty", starts},
	{"broken", "damaged", "restore the object"},
	{"empty", "damaged", "restore the object"},
	{"empty", "not trusted", "add the key"},
	{"rolled back", "this cluster's", restores},
	{"rolled back", "another cluster's", "backups of another cluster are never restored to this member"},
	{"broken", "this cluster's", restores},
	{"broken", "empty", "there is no backup to restore"},
	{"broken", "without full snapshots", "cannot be uploaded: cannot append the spool to the backups: "},
	{"broken", "unreachable", waits},
	{"broken", "none", "there is no backup to restore"},
	{"broken", "another cluster's", "backups of another cluster are never restored to this member"},
	{"empty", "this cluster's", restores},
	{"empty", "without full snapshots", "no new cluster was created"},
	{"empty", "empty", createsCluster},
	{"empty", "none", createsCluster},
	{"empty", "unreachable", waits},
	{"empty", "another cluster's", "backups of another owner are not restored to a volume that is empty or missing revisions"},
}

func TestRecoveryTable(t *testing.T) {
	t.Parallel()
	for i := 0; i < len(cases); i += stepUnlessWhole(2) {
		tc := cases[i]
		t.Run(tc.volume+", "+tc.store, func(t *testing.T) {
			t.Parallel()
			l := newStoredMember(t)
			volumes[tc.volume](l)
			stores[tc.store](l)
			if check, known := checks[tc.result]; known {
				check(l)
			} else {
				l.requireRefused(tc.result)
			}
		})
	}
}

// checks maps each result of a successful start to a function that starts the member and checks the result.
var checks = map[string]func(l *storedMember){
	starts: func(l *storedMember) {
		run := l.StartReady()
		assert.Equal(l.T, "new", l.Get("key"))
		assert.Nil(l.T, run.Status().Recovery)
	},
	backupsFail: func(l *storedMember) {
		run := l.StartReady()
		assert.Equal(l.T, "new", l.Get("key"))
		harness.Eventually(l.T, "the status reports the problem", func() bool {
			return run.Status().Backup.Problem != nil && strings.Contains(run.Status().Backup.Problem.Message, "cluster.json")
		})
		assert.Equal(l.T, 200, run.Readyz())
	},
	uncompared: func(l *storedMember) {
		run := l.Start()
		run.AwaitReady()
		assert.Equal(l.T, "new", l.Get("key"))
		require.NotNil(l.T, run.Status().Recovery)
		assert.Contains(l.T, run.Status().Recovery.Reason, "that was not compared with the store")
		assert.Contains(l.T, run.Status().Recovery.Reason, l.dir)
		l.reconnect()
		harness.Eventually(l.T, "the data has been compared, because the store is reachable", func() bool { return run.Status().Recovery == nil })
		assert.Equal(l.T, "new", l.Get("key"))
	},
	restores: func(l *storedMember) {
		run := l.StartReady()
		assert.Equal(l.T, "new", l.Get("key"))
		require.NotNil(l.T, run.Status().Recovery)
		assert.Contains(l.T, run.Status().Recovery.Loss, "the cluster is restored to revision")
	},
	createsCluster: func(l *storedMember) {
		run := l.StartReady()
		assert.Nil(l.T, run.Status().Recovery)
		assert.Zero(l.T, l.count())
	},
	waits: func(l *storedMember) {
		run := l.Start()
		run.AwaitLine(harness.Line{"message": "the store cannot be read"})
		assert.NotEqual(l.T, 200, run.Readyz())
		for _, text := range []string{"recovery has been reading the store since 20", l.dir, "next attempt within "} {
			harness.Eventually(l.T, "the status explains that the start is waiting for the store", func() bool { return strings.Contains(run.Status().Reason, text) })
		}
		l.reconnect()
		run.AwaitReady()
		assert.Equal(l.T, "new", l.Get("key"))
	},
}

// A start must wait until a user creates the missing directory of the store. The program must not create it, because
// the directory may be missing only because its volume is not mounted.
func TestEmptyVolume_missingBackupFolder(t *testing.T) {
	t.Parallel()
	p, d := harness.NewStandalonePod(t, nil), newDepot(t)
	require.NoError(t, os.Remove(d.dir))
	p.Flags = append(p.Flags, d.flag())
	run := p.Start()
	run.AwaitLine(harness.Line{"message": "create the directory or mount its volume", "level": "warn"})
	assert.NotEqual(t, 200, run.Readyz())
	p.RequireNoData()
	require.NoError(t, os.Mkdir(d.dir, 0o700))
	run.AwaitReady()
}

// A full snapshot may contain a database that was already corrupt when it was backed up. Opening it can crash a
// process, so recovery must open it in a child process and then reject the backup.
func TestDamagedBackup_crashesItsReader(t *testing.T) {
	t.Parallel()
	l := newStoredMember(t)
	other := newDepot(t)
	database, err := os.ReadFile(l.DBPath())
	require.NoError(t, err)
	datadirtest.BreakDatabase(database)
	position, err := datadir.ReadPosition(l.DataDir())
	require.NoError(t, err)
	identity, err := archive.ReadIdentity(l.DataDir())
	require.NoError(t, err)
	cluster := identity.Cluster
	_, err = other.archive().Create(t.Context(), archive.Cluster{Cluster: cluster, Owner: "etcd-cluster", Created: time.Now()}, 1)
	require.NoError(t, err)
	_, err = archivetest.PutFull(t.Context(), other.archive(), archive.Full{
		Cluster: cluster, Generation: 1, Revision: position.Revision, Chain: format.Seed(cluster, 1, position.Revision), Time: time.Now(), Reason: "requested",
	}, bytes.NewReader(database))
	require.NoError(t, err)
	l.Flags = append(l.Flags, other.flag())
	volumes["broken"](l)
	require.NoError(t, os.RemoveAll(filepath.Join(l.Volume, "backup.spool"))) // the spool belongs to the original store
	l.requireRefused("the backups are damaged")
}

// If the newest full snapshot is damaged, the latest revision must be restored from an older full snapshot and the
// segments that follow it.
func TestDamagedBackup_olderFullSnapshotIsUsed(t *testing.T) {
	t.Parallel()
	l := newStoredMember(t)
	run := l.StartReady()
	_, log, status := l.Begin("backup", "now").Wait()
	require.Zero(t, status, log)
	l.Put("key", "newest")
	run.Shutdown()
	fulls, err := filepath.Glob(filepath.Join(l.dir, "gen", "000001", "full", "*", "data"))
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(fulls), 2, "number of full snapshots, except any whose upload was interrupted by the stop")
	harness.CorruptFile(t, fulls[len(fulls)-1], 200, 100)
	breakDatabase(l.Pod)

	again := l.StartReady()
	assert.Equal(t, "newest", l.Get("key"))
	again.AwaitLine(harness.Line{"message": "recovery: a backup object is missing or damaged; restoring without it", "level": "warn"})
}
