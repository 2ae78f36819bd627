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

func everything(t *testing.T, etcd writer.Etcd) capture.Rows {
	t.Helper()
	rows, err := capture.NewReader(etcd.Backend).Since(
		capture.Request{From: 1, UpTo: etcd.Revision(), Limit: 1 << 20, Buckets: true})
	require.NoError(t, err)
	return rows
}

func TestAnEtcdThatWasClosedIsSeenAsItWasInItsLastMoment(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new.etcd")
	etcd := etcdtest.Start(t, dir)
	lease, err := etcd.Client.Grant(t.Context(), 100)
	require.NoError(t, err)
	for range 300 {
		_, err := etcd.Client.Put(t.Context(), "k", "v", clientv3.WithLease(lease.ID))
		require.NoError(t, err)
	}
	_, err = etcd.Client.Delete(t.Context(), "k")
	require.NoError(t, err)
	running := writer.Server(etcd.Server)
	before, revision := everything(t, running), running.Revision()
	etcd.Server.Stop()

	closed, err := capture.OpenClosed(filepath.Join(dir, "member", "snap", "db"), capture.Identity{MemberID: "1", ClusterID: "2", Leader: true, Term: 7})
	require.NoError(t, err)
	defer closed.Close()
	after := everything(t, closed)
	assert.Equal(t, revision, closed.Revision())
	assert.Equal(t, before.Rows, after.Rows)
	assert.Len(t, after.Rows, 301)
	assert.Equal(t, digests(before.Buckets), digests(after.Buckets))
	assert.Equal(t, []any{"1", "2", true, uint64(7)}, []any{closed.MemberID(), closed.ClusterID(), closed.IsLeader(), closed.Term()})
	assert.GreaterOrEqual(t, closed.AppliedIndex(), uint64(300))
}

func TestAnEtcdThatNobodyHasWrittenToIsAtTheRevisionThatItWasAt(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new.etcd")
	etcd := etcdtest.Start(t, dir)
	revision := writer.Server(etcd.Server).Revision()
	etcd.Server.Stop()
	closed, err := capture.OpenClosed(filepath.Join(dir, "member", "snap", "db"), capture.Identity{})
	require.NoError(t, err)
	defer closed.Close()
	assert.Equal(t, revision, closed.Revision())
}

func TestTheWholeOfADatabaseAtRestCanBeCopied(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new.etcd")
	etcd := etcdtest.Start(t, dir)
	_, err := etcd.Client.Put(t.Context(), "k", "v")
	require.NoError(t, err)
	etcd.Server.Stop()
	path := filepath.Join(dir, "member", "snap", "db")
	closed, err := capture.OpenClosed(path, capture.Identity{})
	require.NoError(t, err)
	defer closed.Close()
	snapshot, err := capture.NewReader(closed.Backend).Snapshot()
	require.NoError(t, err)
	assert.Equal(t, closed.Revision(), snapshot.Revision)
	var copied bytes.Buffer
	require.NoError(t, snapshot.WriteTo(t.Context(), &copied))
	require.NoError(t, snapshot.Close())
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, content[8192:copied.Len()], copied.Bytes()[8192:], "but for the two meta pages, of which bbolt writes its own")
}

func digests(buckets []*format.Bucket) map[string]format.Digest {
	found := map[string]format.Digest{}
	for _, bucket := range buckets {
		found[bucket.Name] = capture.Digest(bucket)
	}
	return found
}

func TestADatabaseThatIsNotThereIsNamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	_, err := capture.OpenClosed(path, capture.Identity{})
	require.ErrorContains(t, err, path)
	assert.NoFileExists(t, path)
}
