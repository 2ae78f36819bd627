package restore

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.uber.org/zap"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/bootstrap/datadir/datadirtest"
)

// keysAt returns the keys that a client could read at a moment.
func (h *history) keysAt(to moment) map[string]mvccpb.KeyValue {
	keys := map[string]mvccpb.KeyValue{}
	for _, row := range h.between(0, to.revision) {
		var kv mvccpb.KeyValue
		require.NoError(h.t, kv.Unmarshal(row.Value))
		if row.Tombstone() {
			delete(keys, string(kv.Key))
		} else {
			keys[string(kv.Key)] = kv
		}
	}
	return keys
}

func (m moment) entries(bucket string) (count int) {
	for _, small := range m.buckets {
		if small.Name == bucket {
			count = small.Len()
		}
	}
	return count
}

// requireServes starts etcd on restored data and compares all keys, and the numbers of leases, users and roles, with
// the recorded moment. A new write must get a revision greater than above.
func (h *history) requireServes(dir string, to moment, above int64) {
	t := h.t
	server, err := datadirtest.Start(dir)
	require.NoError(t, err)
	defer server.Close()
	client := v3client.New(server.Server)
	got, err := client.Get(t.Context(), "\x00", clientv3.WithFromKey())
	require.NoError(t, err)
	want := h.keysAt(to)
	require.Len(t, got.Kvs, len(want))
	for _, kv := range got.Kvs {
		require.Equal(t, want[string(kv.Key)], *kv)
	}
	leases, err := client.Leases(t.Context())
	require.NoError(t, err)
	require.Len(t, leases.Leases, to.entries(string(schema.Lease.Name())))
	users, err := client.UserList(t.Context())
	require.NoError(t, err)
	require.Len(t, users.Users, to.entries(string(schema.AuthUsers.Name())))
	roles, err := client.RoleList(t.Context())
	require.NoError(t, err)
	require.Len(t, roles.Roles, to.entries(string(schema.AuthRoles.Name())))
	put, err := client.Put(t.Context(), "after", "the restore")
	require.NoError(t, err)
	require.Greater(t, put.Header.Revision, above)
}

// restore restores an exported snapshot like `etcdutl snapshot restore` and returns the data directory.
func restore(t *testing.T, exported string) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "restored.etcd")
	require.NoError(t, snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
		SnapshotPath: exported, Name: "default", OutputDataDir: dir,
		PeerURLs: []string{"http://127.0.0.1:1"}, InitialCluster: "default=http://127.0.0.1:1", InitialClusterToken: "token",
	}))
	return dir
}

func TestExport_isRestoredByEtcdutl(t *testing.T) {
	h := newHistory(t, 3)
	h.run(80)
	for i := range 3 {
		from, to := h.pick()
		exported := filepath.Join(t.TempDir(), fmt.Sprint(i))
		result, err := Export(t.Context(), h.source(from, to), exported, Options{})
		require.NoError(t, err)
		info, err := os.Stat(exported)
		require.NoError(t, err)
		require.Equal(t, info.Size(), result.Bytes)
		require.Equal(t, os.FileMode(0o600), info.Mode())
		status, err := snapshot.NewV3(zap.NewNop()).Status(exported)
		require.NoError(t, err)
		require.Len(t, h.keysAt(to), status.TotalKey)
		h.requireServes(restore(t, exported), to, to.revision)
	}
}

func TestExport_copiesFullSnapshotUnchanged(t *testing.T) {
	h := newHistory(t, 4)
	h.run(10)
	source := h.source(h.fulls[0], h.fulls[0].moment)
	source.Rows = nil
	exported := filepath.Join(t.TempDir(), "exported")
	_, err := Export(t.Context(), source, exported, Options{})
	require.NoError(t, err)
	got, err := os.ReadFile(exported)
	require.NoError(t, err)
	want, err := os.ReadFile(h.fulls[0].path)
	require.NoError(t, err)
	require.Equal(t, want, got)
	_, err = Export(t.Context(), source, exported, Options{})
	require.ErrorContains(t, err, "already exists")
}

func TestExport_replacesPartialFile(t *testing.T) {
	h := newHistory(t, 5)
	h.run(5)
	exported := filepath.Join(t.TempDir(), "exported")
	require.NoError(t, os.WriteFile(exported+".partial", []byte("half"), 0o600))
	_, err := Export(t.Context(), h.source(h.fulls[0], h.fulls[0].moment), exported, Options{})
	require.NoError(t, err)
	require.NoFileExists(t, exported+".partial")
	restore(t, exported)
}

// Export must not overwrite a file that another process created during the download.
func TestExport_doesNotOverwriteFiles(t *testing.T) {
	h := newHistory(t, 5)
	h.run(5)
	exported := filepath.Join(t.TempDir(), "exported")
	source := h.source(h.fulls[0], h.fulls[0].moment)
	open := source.Snapshot
	source.Snapshot = func(ctx context.Context) (io.ReadCloser, error) {
		require.NoError(t, os.WriteFile(exported, []byte("content from another process"), 0o600))
		return open(ctx)
	}
	_, err := Export(t.Context(), source, exported, Options{})
	require.ErrorIs(t, err, fs.ErrExist)
	content, err := os.ReadFile(exported)
	require.NoError(t, err)
	require.Equal(t, "content from another process", string(content))
	require.NoFileExists(t, exported+".partial")
}

// Earlier revisions must be compacted, because Kubernetes watchers list again only if their revision was compacted.
func TestAbove_compactsEverythingBefore(t *testing.T) {
	h := newHistory(t, 6)
	h.run(40)
	from, to := h.pick()
	exported := filepath.Join(t.TempDir(), "exported")
	result, err := Export(t.Context(), h.source(from, to), exported, Options{Above: 1_000_000})
	require.NoError(t, err)
	require.EqualValues(t, 1_000_001, result.Revision)
	dir := restore(t, exported)
	server, err := datadirtest.Start(dir)
	require.NoError(t, err)
	client := v3client.New(server.Server)
	for _, before := range []int64{1, to.revision, 1_000_000} {
		watched := <-client.Watch(t.Context(), "key", clientv3.WithPrefix(), clientv3.WithRev(before))
		require.EqualValues(t, 1_000_001, watched.CompactRevision, "watch at %d", before)
	}
	got, err := client.Get(t.Context(), "key", clientv3.WithPrefix(), clientv3.WithRev(1_000_001))
	require.NoError(t, err)
	require.EqualValues(t, 1_000_001, got.Header.Revision)
	server.Close()
	h.requireServes(dir, to, 1_000_001)
}

func TestAbove_neverReusesRevisions(t *testing.T) {
	h := newHistory(t, 8)
	h.run(20)
	to := h.moments[len(h.moments)-1]
	path := filepath.Join(t.TempDir(), "db")
	result, err := Database(t.Context(), h.source(h.fulls[0], to), path, Options{Above: 3}) // all rows have higher revisions
	require.NoError(t, err)
	require.Equal(t, to.revision+1, result.Revision)
}

// If the target is in the middle of a segment, a key must keep a lease that is recorded only at the end of the
// segment.
func TestAKeyKeepsALeaseGrantedAfterTheLastBucket(t *testing.T) {
	h, _ := leased(t)
	before, after := h.moments[0], h.moments[1]
	source := returning(h.source(h.fulls[0], after), archive.Reading{Buckets: before.buckets})
	source.Recorded = func(context.Context) (*format.Bucket, error) { return after.bucketOf("lease"), nil }
	exported := filepath.Join(t.TempDir(), "exported")
	_, err := Export(t.Context(), source, exported, Options{})
	require.NoError(t, err)
	server, err := datadirtest.Start(restore(t, exported))
	require.NoError(t, err)
	defer server.Close()
	left, err := v3client.New(server.Server).TimeToLive(t.Context(), h.leases[0], clientv3.WithAttachedKeys())
	require.NoError(t, err)
	require.Len(t, left.Keys, 1)
}
