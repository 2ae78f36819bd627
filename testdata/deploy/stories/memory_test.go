package stories

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"etcd-wrapper/testdata/deploy/cluster"
)

// A member must return after the kernel has killed its container for exceeding the memory limit. The test sets a
// limit, because the chart has none by default.
func TestOOMKill_memberReturns(t *testing.T) {
	w := newEnvironmentWithBucket(t)
	w.apply(three, "resources: {limits: {memory: 512Mi}}")
	w.awaitReady(3)
	client := w.etcd()
	for i := range 64 {
		cluster.Eventually(t, "a large value is written", func() error {
			return tryPut(client, fmt.Sprintf("large/%d", i), string(make([]byte, 1<<20)), 10*time.Second)
		})
	}
	writes := w.startWriter()
	stop := w.readEverything("large/", 32)
	killed := ""
	cluster.Eventually(t, "a member is killed", func() error {
		for name := range w.pods() {
			if w.restarts(name) > 0 {
				killed = name
				return nil
			}
		}
		return errNotYet
	})
	stop()
	status := w.pods()[killed].Status.ContainerStatuses[0]
	require.EqualValues(t, 137, status.LastTerminationState.Terminated.ExitCode)
	w.awaitReady(3)
	cluster.Eventually(t, "the status reports that the last run was killed", func() error {
		out, err := w.tryExec(killed, "status", "-v")
		return errors.Join(err, contains(strings.Join(strings.Fields(out), " "), "last exit killed"))
	})
	assert.NoError(t, contains(w.log(killed), "full validation"))
	w.checkBackups(killed, writes)
}

// readEverything starts clients that repeatedly read all keys in a single request until stop is called.
func (w *environment) readEverything(prefix string, clients int) (stop func()) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for range clients {
		client := w.etcd()
		running.Go(func() {
			for ctx.Err() == nil {
				once, end := context.WithTimeout(ctx, 10*time.Second)
				_, _ = client.Get(once, prefix, clientv3.WithPrefix()) // fails when the member runs out of memory
				end()
			}
		})
	}
	return func() {
		cancel()
		running.Wait()
	}
}
