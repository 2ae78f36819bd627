package member_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// fill writes the given number of mebibytes.
func fill(t *testing.T, client *clientv3.Client, mebibytes int) {
	t.Helper()
	value := strings.Repeat("x", 1<<20)
	for i := range mebibytes {
		require.Eventually(t, func() bool { // on a busy machine, a write may exceed etcd's request timeout
			_, err := client.Put(soon(t), fmt.Sprintf("large-%03d", i), value)
			return err == nil
		}, patience, tick)
	}
}

// empty deletes and compacts the keys written by fill, which frees their pages.
func empty(t *testing.T, client *clientv3.Client) {
	t.Helper()
	reply, err := client.Delete(soon(t), "large-", clientv3.WithPrefix())
	require.NoError(t, err)
	require.Eventually(t, func() bool { // as above
		_, err = client.Compact(soon(t), reply.Header.Revision, clientv3.WithCompactPhysical())
		return err == nil || errors.Is(err, rpctypes.ErrCompacted)
	}, patience, tick)
}

// holdSnapshot requests a snapshot and stops reading it until the context is canceled.
func holdSnapshot(ctx context.Context, t *testing.T, client *clientv3.Client) {
	t.Helper()
	stream, err := etcdserverpb.NewMaintenanceClient(client.ActiveConnection()).Snapshot(ctx, &etcdserverpb.SnapshotRequest{})
	require.NoError(t, err)
	_, err = stream.Recv()
	require.NoError(t, err)
}

// answers reports whether a write succeeds in time.
func answers(t *testing.T, client *clientv3.Client, within time.Duration) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	_, err := client.Put(ctx, "key", "value")
	return err == nil
}

func TestDefragmentation_duringASnapshot(t *testing.T) {
	t.Parallel()
	b := openBench(t)
	client := b.client(t)
	fill(t, client, 12)

	reading, leave := context.WithCancel(t.Context())
	defer leave()
	holdSnapshot(reading, t, client)
	_, err := client.Defragment(soon(t), endpoint(b.config))
	require.Equal(t, codes.FailedPrecondition, status.Code(err), "%v", err)
	require.ErrorContains(t, err, "cannot defragment: the database is being read: wait for the snapshot for 127.0.0.1:")
	reply, err := http.Post(endpoint(b.config)+"/v3/maintenance/defragment", "application/json", strings.NewReader("{}"))
	require.NoError(t, err)
	defer reply.Body.Close()
	output, err := io.ReadAll(reply.Body)
	require.NoError(t, err)
	require.Contains(t, string(output), "the database is being read", "etcd's gateway leads to the same door")
	require.Len(t, b.Maintainer.State().Readers, 1)
	for range 20 {
		require.True(t, answers(t, client, patience))
	}
	leave()
	require.Eventually(t, func() bool { return len(b.Maintainer.State().Readers) == 0 }, patience, tick)
	_, err = client.Defragment(soon(t), endpoint(b.config))
	require.NoError(t, err)
	assert.Equal(t, 1, b.Maintainer.State().Completed)
}
