package recovery

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"

	"etcd-wrapper/bootstrap/datadir/datadirtest"
	"etcd-wrapper/bootstrap/etcdconf"
)

// The time of the last write to a lost volume is unknown.
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
		yaml    string
		alone   bool
		members int
	}{
		"alone":                      {"initial-cluster: m-0=http://127.0.0.1:1", true, 1},
		"alone in one that exists":   {"initial-cluster: m-0=http://127.0.0.1:1\ninitial-cluster-state: existing", true, 1},
		"one of several":             {"initial-cluster: m-0=http://127.0.0.1:1,m-1=http://127.0.0.1:2", false, 2},
		"one that is to be found":    {"discovery-srv: cluster.invalid", false, 0},
		"that are found and exist":   {"discovery-srv: cluster.invalid\ninitial-cluster-state: existing", false, 0},
		"alone, and nothing is said": {"initial-cluster-state: new", true, 1},
		"forced to go on alone":      {"initial-cluster: m-0=http://127.0.0.1:1,m-1=http://127.0.0.1:2\nforce-new-cluster: true", false, 2},
	} {
		t.Run(name, func(t *testing.T) {
			checked, err := etcdconf.Parse([]byte("name: m-0\ndata-dir: /data\ninitial-advertise-peer-urls: http://127.0.0.1:1\n" + test.yaml))
			require.NoError(t, err)
			member := memberOf(checked, "/data")
			assert.Equal(t, test.alone, member.Alone)
			assert.Len(t, member.Members, test.members)
		})
	}
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
