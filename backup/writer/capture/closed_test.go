package capture_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/writer"
	"etcd-wrapper/backup/writer/capture"
	"etcd-wrapper/cmd/suites/etcdtest"
)

// readAll reads all rows and small buckets.
func readAll(t *testing.T, etcd writer.Etcd) capture.Rows {
	t.Helper()
	rows, err := capture.NewReader(etcd.Backend).ReadRows(
		capture.Request{From: 1, UpTo: etcd.Revision(), Limit: 1 << 20, Buckets: true})
	require.NoError(t, err)
	return rows
}

// closed starts an etcd server, writes to it and stops it. It returns the closed database, the rows that etcd had
// when it stopped, and the path of the database file.
func closed(t *testing.T, write func(*clientv3.Client) error) (database *capture.Closed, before capture.Rows, path string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "new.etcd")
	etcd := etcdtest.Start(t, dir)
	require.NoError(t, write(etcd.Client))
	running := writer.Server(etcd.Server)
	before, revision := readAll(t, running), running.Revision()
	etcd.Server.Stop()
	path = filepath.Join(dir, "member", "snap", "db")
	database, err := capture.OpenClosed(path, capture.Identity{MemberID: "1", ClusterID: "2", Leader: true, Term: 7})
	require.NoError(t, err)
	t.Cleanup(func() { _ = database.Close() })
	assert.Equal(t, revision, database.Revision())
	return database, before, path
}

func TestClosed_lastState(t *testing.T) {
	closed, before, _ := closed(t, func(client *clientv3.Client) error {
		lease, err := client.Grant(t.Context(), 100)
		for range 300 {
			if err == nil {
				_, err = client.Put(t.Context(), "k", "v", clientv3.WithLease(lease.ID))
			}
		}
		if err == nil {
			_, err = client.Delete(t.Context(), "k")
		}
		return err
	})
	after := readAll(t, closed)
	assert.Equal(t, before.Rows, after.Rows)
	assert.Len(t, after.Rows, 301)
	assert.Equal(t, digests(before.Buckets), digests(after.Buckets))
	assert.Equal(t, capture.Identity{MemberID: "1", ClusterID: "2", Leader: true, Term: 7}, closed.Identity())
	assert.GreaterOrEqual(t, closed.AppliedIndex(), uint64(300))
}

func TestClosed_fullSnapshot(t *testing.T) {
	for name, write := range map[string]func(*clientv3.Client) error{
		"after a write":  func(client *clientv3.Client) error { _, err := client.Put(t.Context(), "k", "v"); return err },
		"without writes": func(*clientv3.Client) error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			closed, _, path := closed(t, write)
			snapshot, err := capture.NewReader(closed.Backend).Snapshot()
			require.NoError(t, err)
			assert.Equal(t, closed.Revision(), snapshot.Revision)
			assert.Positive(t, snapshot.Size)
			var copied bytes.Buffer
			require.NoError(t, snapshot.WriteTo(t.Context(), &copied))
			require.NoError(t, snapshot.Close())
			content, err := os.ReadFile(path)
			require.NoError(t, err)
			assert.Equal(t, content[8192:copied.Len()], copied.Bytes()[8192:], "only the two meta pages may differ")
		})
	}
}

func digests(buckets []*format.Bucket) map[string]format.Digest {
	found := map[string]format.Digest{}
	for _, bucket := range buckets {
		found[bucket.Name] = capture.Digest(bucket)
	}
	return found
}

func TestClosed_missingDatabase(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	_, err := capture.OpenClosed(path, capture.Identity{})
	require.ErrorContains(t, err, path)
	assert.NoFileExists(t, path)
}
