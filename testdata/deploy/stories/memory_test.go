package stories

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"etcd-wrapper/testdata/deploy/cluster"
)

// With a limit, which the manifests have not, the kernel kills a container that takes more memory.
func TestAMemberComesBackAfterTheKernelHasKilledItForMemory(t *testing.T) {
	w := newWorld(t)
	w.apply(w.overlay("standalone", `patches:
- target: {kind: StatefulSet}
  patch: '[{"op": "add", "path": "/spec/template/spec/containers/0/resources/limits", "value": {"memory": "512Mi"}}]'
`))
	w.awaitReady(1)
	w.greet()
	for i := range 64 {
		require.NoError(t, tryPut(w.etcd(), fmt.Sprintf("large/%d", i), string(make([]byte, 1<<20)), 10*time.Second))
	}
	stop := w.readEverything("large/", 32)
	cluster.Eventually(t, "it is killed", func() error {
		if w.pods()["etcd-main-0"].Status.ContainerStatuses[0].RestartCount == 0 {
			return errNotYet
		}
		return nil
	})
	stop()
	status := w.pods()["etcd-main-0"].Status.ContainerStatuses[0]
	require.EqualValues(t, 137, status.LastTerminationState.Terminated.ExitCode)
	w.awaitReady(1)
	assert.True(t, w.greeted())
	assert.NoError(t, contains(w.log("etcd-main-0"), "full validation"))
	assert.Contains(t, w.asked("etcd-main-0", "status"), "last exit        killed")
}

// readEverything has many clients read all there is, each as a whole, until it is told to stop.
func (w *world) readEverything(prefix string, clients int) (stop func()) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for range clients {
		client := w.etcd()
		running.Go(func() {
			for ctx.Err() == nil {
				once, end := context.WithTimeout(ctx, 10*time.Second)
				_, _ = client.Get(once, prefix, clientv3.WithPrefix()) // it is to be too much
				end()
			}
		})
	}
	return func() {
		cancel()
		running.Wait()
	}
}
