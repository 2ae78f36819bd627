package endtoend_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"etcd-wrapper/cmd/suites/harness"
	"etcd-wrapper/exitcode"
)

// fragment fills the database and deletes half of the data to leave free pages. The data is too large to be buffered
// in a connection, so a snapshot stays open until the client reads it.
func fragment(t *testing.T, p *harness.Pod) {
	t.Helper()
	for i := range 24 {
		p.Put(fmt.Sprintf("large-%d", i), strings.Repeat(fmt.Sprint(i%10), 1<<20))
	}
	client := p.Etcd()
	reply, err := client.Delete(t.Context(), "large-1", clientv3.WithPrefix())
	require.NoError(t, err)
	_, err = client.Compact(t.Context(), reply.Header.Revision, clientv3.WithCompactPhysical())
	require.NoError(t, err)
}

func TestDefragment_command(t *testing.T) {
	t.Parallel()
	p := harness.NewPod(t)
	run := p.StartReady()
	fragment(t, p)
	before := run.Status().DBSize

	out, log, code := p.Begin("defrag").Wait()
	require.Zero(t, code, log)
	assert.Regexp(t, `(?m)^defragmented by command in .+: .+ MiB → .+ MiB$`, out)
	status := run.Status()
	assert.Less(t, status.DBSize, before)
	assert.Equal(t, 1, status.Maintenance.Completed)
	run.AwaitLine(harness.Line{"origin": "command"})
	out, _, _ = p.Begin("status", "-v").Wait()
	assert.Regexp(t, `last defragmentation by command in .+ MiB, .+ ago `, harness.OneLine(out))
	_, metrics := run.Request(http.MethodGet, "/metrics")
	assert.Contains(t, metrics, `etcd_wrapper_defragmentations_total{outcome="done"} 1`)

	run.Shutdown()
	_, log, code = p.Begin("defrag").Wait()
	assert.Equal(t, int(exitcode.NoAnswer), code, log)
}

// A defragmentation must be rejected while a client reads a snapshot, instead of blocking etcd. The
// etcd-backup-restore sidecar may request both at the same time.
func TestDefragment_duringASnapshot(t *testing.T) {
	t.Parallel()
	p := harness.NewPod(t)
	run := p.StartReady()
	fragment(t, p)
	reading, stopReading := context.WithCancel(t.Context())
	defer stopReading()
	stream, err := etcdserverpb.NewMaintenanceClient(p.Etcd().ActiveConnection()).Snapshot(reading, &etcdserverpb.SnapshotRequest{})
	require.NoError(t, err)
	_, err = stream.Recv()
	require.NoError(t, err)

	_, log, code := p.Begin("etcdctl", "defrag").Wait()
	assert.NotZero(t, code)
	assert.Contains(t, log, "cannot defragment: the database is being read: wait for the snapshot for 127.0.0.1:")
	_, log, code = p.Begin("defrag").Wait()
	assert.Equal(t, int(exitcode.ToolFailed), code)
	assert.Contains(t, log, "wait for the snapshot for 127.0.0.1:")
	status, _, _ := p.Begin("status", "-v").Wait()
	assert.Regexp(t, `readers the snapshot for 127.0.0.1:\d+ since`, harness.OneLine(status))
	p.Put("key", "value")
	run.AwaitReady()

	stopReading()
	harness.Eventually(t, "the snapshot is closed", func() bool { return len(run.Status().Maintenance.Readers) == 0 })
	out, log, code := p.Begin("etcdctl", "defrag").Wait()
	require.Zero(t, code, log)
	assert.Contains(t, out, "Finished defragmenting etcd member")
	assert.Equal(t, "client", run.Status().Maintenance.LastDefragmentation.Origin)
	run.Shutdown()
}

func TestDefragment_unreadyMeanwhile(t *testing.T) {
	t.Parallel()
	pods, runs := harness.Cluster(t, 3)
	fragment(t, pods[0])
	for i, p := range pods {
		harness.Eventually(t, "the member is defragmented; this is rejected until it has learned that the previous defragmentation is over", func() bool {
			_, _, code := p.Begin("defrag").Wait()
			return code == 0
		})
		runs[i].AwaitLine(harness.Line{"check": "defragmentation", "to": "failed"})
		runs[i].AwaitReady()
		p.Put("key", fmt.Sprint(i))
	}
}

func TestDefragment_withoutEtcd(t *testing.T) {
	t.Parallel()
	p := harness.NewPod(t)
	p.Sidecar.Takes = harness.Forever
	run := p.Start()
	awaitState(run, "Wait")
	code, body := run.Request(http.MethodPost, "/defrag")
	assert.Equal(t, http.StatusConflict, code)
	assert.Equal(t, "etcd is not running\n", body)
}
