package member_test

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
)

func TestRequests(t *testing.T) {
	t.Parallel()
	b := openBench(t)
	client, start := b.client(t), time.Now()
	_, err := client.Put(soon(t), "key", "value")
	require.NoError(t, err)
	_, err = client.Txn(soon(t)).Then(clientv3.OpPut("key", "other")).Commit()
	require.NoError(t, err)
	_, err = client.Delete(soon(t), "key")
	require.NoError(t, err)
	_, err = client.Get(soon(t), "key")
	require.NoError(t, err)
	_, err = client.Get(soon(t), "key", clientv3.WithRev(99))
	require.Error(t, err, "what fails is not counted")
	_, err = client.Status(soon(t), endpoint(b.config))
	require.NoError(t, err)

	writes, reads := b.Requests()
	assert.EqualValues(t, 3, writes.Count)
	assert.EqualValues(t, 1, reads.Count)
	assert.Positive(t, writes.Took)
	assert.Positive(t, reads.Took)
	assert.Less(t, writes.Took+reads.Took, time.Since(start))
}

// The readiness history depends on these metrics, which other versions of etcd may rename.
func TestEtcdMetrics(t *testing.T) {
	t.Parallel()
	openBench(t)
	families, err := prometheus.DefaultGatherer.Gather()
	require.NoError(t, err)
	seen := map[string]bool{}
	for _, family := range families {
		seen[family.GetName()] = true
	}
	assert.True(t, seen["etcd_disk_wal_fsync_duration_seconds"])
	assert.True(t, seen["etcd_debugging_mvcc_current_revision"])
}
