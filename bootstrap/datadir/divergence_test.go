package datadir

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"

	"etcd-wrapper/bootstrap/datadir/datadirtest"
)

func TestAnEarlierStateDoesNotDiverge(t *testing.T) {
	dir, earlier := datadirtest.Born(t), t.TempDir()
	require.NoError(t, os.CopyFS(earlier, os.DirFS(dir)))
	last := written(t, dir, func(c *clientv3.Client) (int64, error) {
		reply, err := c.Put(t.Context(), "key", "later")
		return reply.Header.Revision, err
	})
	requireDivergence(t, 0, earlier, dir)
	requireDivergence(t, 0, dir, earlier)
	other := written(t, earlier, func(c *clientv3.Client) (int64, error) {
		reply, err := c.Put(t.Context(), "key", "another")
		return reply.Header.Revision, err
	})
	require.Equal(t, last, other)
	requireDivergence(t, last, earlier, dir)
}

func TestADeletionIsNotAPut(t *testing.T) {
	dir, other := datadirtest.Born(t), t.TempDir()
	require.NoError(t, os.CopyFS(other, os.DirFS(dir)))
	put := func(c *clientv3.Client) (int64, error) {
		reply, err := c.Put(t.Context(), "key", "value")
		return reply.Header.Revision, err
	}
	written(t, dir, put)
	written(t, other, put)
	last := written(t, dir, put)
	written(t, other, func(c *clientv3.Client) (int64, error) {
		reply, err := c.Delete(t.Context(), "key")
		return reply.Header.Revision, err
	})
	requireDivergence(t, last, dir, other)
	requireDivergence(t, last, other, dir)
}

func requireDivergence(t *testing.T, expected int64, dir, other string) {
	t.Helper()
	revision, err := Divergence(dir, other)
	require.NoError(t, err)
	require.Equal(t, expected, revision)
}

// written runs the etcd of a data directory and returns the revision that was written.
func written(t *testing.T, dir string, write func(*clientv3.Client) (int64, error)) int64 {
	t.Helper()
	server, err := datadirtest.Start(dir)
	require.NoError(t, err)
	defer server.Close()
	revision, err := write(v3client.New(server.Server))
	require.NoError(t, err)
	assert.Positive(t, revision)
	return revision
}
