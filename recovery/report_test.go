package recovery

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/storage/schema"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
	"etcd-wrapper/bootstrap/datadir/datadirtest"
	"etcd-wrapper/bootstrap/etcdconf"
	"etcd-wrapper/exitcode"
)

// The last write to a lost volume is unknown.
func TestIntervalBetweenLastBackupAndLastWrite(t *testing.T) {
	for name, test := range map[string]struct {
		gap     time.Duration
		happen  func(*world)
		message string
	}{
		"a moment":                 {730 * time.Millisecond, (*world).damage, "; nothing is known to be lost; the backups end at most 800ms before the last write of etcd to the volume"},
		"a moment, with revisions": {730 * time.Millisecond, func(w *world) { w.put("a", "b") }, "; 2 revisions are lost; the backups end at most 800ms before the last write of etcd"},
		"nothing":                  {-time.Minute, (*world).damage, "the backups end at most 0s before the last write"},
		"hours":                    {3*time.Hour + time.Millisecond, (*world).damage, "the backups end at most 3h0m1s before the last write"},
		"not known":                {time.Second, (*world).lose, "; nothing is known to be lost\""},
		"log is gone": {time.Second, func(w *world) {
			require.NoError(w.t, os.RemoveAll(filepath.Join(w.member.DataDir, "member", "wal")))
			w.damage()
		}, "; nothing is known to be lost\""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFilledWorld(t)
			head, err := w.archive.Head(t.Context(), 1)
			require.NoError(t, err)
			test.happen(w)
			w.writtenAt(head.Full.Time.Add(test.gap))
			_, err = w.recovery().prepare(t.Context(), w.member, func(context.Context) error {
				if _, err := os.Stat(w.member.DataDir); err != nil {
					return nil
				}
				return errors.New("a page is damaged")
			})
			require.NoError(t, err)
			assert.Contains(t, w.log.String(), test.message)
		})
	}
}

// writtenAt sets the time of the last write to etcd's log.
func (w *world) writtenAt(at time.Time) {
	w.t.Helper()
	segments, err := filepath.Glob(filepath.Join(w.member.DataDir, "member", "wal", "*.wal"))
	require.NoError(w.t, err)
	for _, segment := range segments {
		require.NoError(w.t, os.Chtimes(segment, at, at))
	}
}

func TestMemberOfConfig(t *testing.T) {
	for name, test := range map[string]struct {
		yaml         string
		alone, joins bool
		members      int
	}{
		"alone":                      {"initial-cluster: m-0=http://127.0.0.1:1", true, false, 1},
		"alone in one that exists":   {"initial-cluster: m-0=http://127.0.0.1:1\ninitial-cluster-state: existing", true, true, 1},
		"one of several":             {"initial-cluster: m-0=http://127.0.0.1:1,m-1=http://127.0.0.1:2", false, false, 2},
		"one that is to be found":    {"discovery-srv: cluster.invalid", false, false, 0},
		"that are found and exist":   {"discovery-srv: cluster.invalid\ninitial-cluster-state: existing", false, true, 0},
		"alone, and nothing is said": {"initial-cluster-state: new", true, false, 1},
		"forced to go on alone":      {"initial-cluster: m-0=http://127.0.0.1:1,m-1=http://127.0.0.1:2\nforce-new-cluster: true", false, false, 2},
	} {
		t.Run(name, func(t *testing.T) {
			checked, err := etcdconf.Parse([]byte("name: m-0\ndata-dir: /data\ninitial-advertise-peer-urls: http://127.0.0.1:1\n" + test.yaml))
			require.NoError(t, err)
			member := memberOf(checked, "/data")
			assert.Equal(t, test.alone, member.Alone)
			assert.Equal(t, test.joins, member.Joins)
			assert.Equal(t, checked.Etcd.ForceNewCluster, member.Forced)
			assert.Len(t, member.Members, test.members)
		})
	}
}

// A first start may be interrupted between the cluster manifest and the first generation.
func TestValidVolumeStartsIfTheStoreHasOnlyItsManifest(t *testing.T) {
	w := newWorld(t)
	require.NoError(t, os.Rename(datadirtest.Initialized(t), w.member.DataDir))
	w.store.Inject(memory.Fault{Op: memory.Put, After: 1, Times: 1, Err: store.ErrUnavailable})
	_, err := w.archive.Create(t.Context(), archive.Cluster{Cluster: ours, Owner: w.member.Token, Etcd: hex(positionOf(t, w.member.DataDir).ClusterID), Created: at}, 1)
	require.ErrorIs(t, err, store.ErrUnavailable)
	require.Empty(t, w.generations())
	require.NoError(t, w.run())
	assert.Empty(t, w.preserved())
}

// before returns a hook that calls happens once, before the given action.
func before(action Action, happens func() error) func(Action) error {
	seen := false
	return func(next Action) error {
		if next != action || seen {
			return nil
		}
		seen = true
		return happens()
	}
}

func TestReadOnlyVolumeIsNamedFirst(t *testing.T) {
	w := newFilledWorld(t)
	w.damage()
	w.options.Inspect = func(_ context.Context, path string) error {
		return &fs.PathError{Op: "open", Path: path, Err: syscall.EROFS}
	}
	err := w.run()
	first, advice, _ := strings.Cut(err.Error(), "; ")
	assert.Contains(t, first, "read-only file system")
	assert.Equal(t, "recovery tries again, and continues from here; mount the volume read-write", advice)
	assert.Equal(t, exitcode.Clean, w.statusOf(err))
}

// The record of an earlier recovery was removed with the data directory.
func TestNewClusterNextToAPreservedCopyIsReported(t *testing.T) {
	for name, archived := range map[string]bool{"without a store": false, "with an empty store": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			if !archived {
				w.options.Archive = nil
			}
			w.addPreserved(oldest, newest)
			r := w.recovery()
			require.NoError(t, w.prepare(r))
			assert.True(t, r.Progress().Warning)
			assert.Contains(t, r.Progress().Reason, "although "+w.member.DataDir+".aside-"+newest+" has earlier data, which were not restored")
			assert.Regexp(t, `"level":"warn".*which were not restored`, w.log.String())
		})
	}
	w := newFilledWorld(t)
	w.addPreserved(oldest)
	r := w.recovery()
	require.NoError(t, w.prepare(r))
	assert.False(t, r.Progress().Warning, "the data that are used are newer")
}

// The rows of a revision never change. If a value differs, the disk has changed it, unless the data was copied.
func TestValueThatTheDiskChangedIsReportedAsSuch(t *testing.T) {
	w := newFilledWorld(t)
	w.advanceStore()
	db, err := bolt.Open(w.database(), 0o600, nil)
	require.NoError(t, err)
	require.NoError(t, db.Update(func(tx *bolt.Tx) error {
		rows := tx.Bucket(schema.Key.Name())
		key, value := rows.Cursor().Last()
		changed := bytes.Clone(value)
		changed[len(changed)-1] ^= 1
		return rows.Put(bytes.Clone(key), changed)
	}))
	require.NoError(t, db.Close())
	w.requireRefused("revision 2 on the volume differs from the one in ", "the disk has changed it",
		"if the disk has changed it, move the data directory away to restore from the store")
	w.lose()
	require.NoError(t, w.run(), "the way out")
	w.requireKeys("a", "key")
}

func TestDroppedAlarmsAreLogged(t *testing.T) {
	w := newFilledWorld(t)
	server, err := datadirtest.Start(w.member.DataDir)
	require.NoError(t, err)
	_, err = v3client.New(server.Server).Put(t.Context(), "a", "value")
	require.NoError(t, err)
	_, err = server.Server.Alarm(t.Context(), &etcdserverpb.AlarmRequest{
		Action: etcdserverpb.AlarmRequest_ACTIVATE, MemberID: uint64(server.Server.MemberID()), Alarm: etcdserverpb.AlarmType_CORRUPT,
	})
	require.NoError(t, err)
	server.Close()
	w.backUp()
	w.lose()
	require.NoError(t, w.run())
	assert.Contains(t, w.log.String(), `"alarms":["CORRUPT"]`)
}
