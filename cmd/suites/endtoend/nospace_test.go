package endtoend_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"etcd-wrapper/cmd/suites/harness"
)

// lifted is how long the alarm NOSPACE may last once keys were deleted and etcd was told to compact.
const lifted = 20 * time.Second

// Each member has an alarm of its own, and all have to be defragmented, one after the other.
func TestWritesAreBackSoonAfterDeletionAndCompaction(t *testing.T) {
	onlyWithMembers(t)
	for _, size := range []int{3, 5} {
		t.Run(fmt.Sprintf("of %d members", size), func(t *testing.T) { writesAreBackSoon(t, size) })
	}
}

func writesAreBackSoon(t *testing.T, size int) {
	t.Helper()
	pods := harness.StandaloneMembers(t, size)
	for _, p := range pods {
		p.Config["quota-backend-bytes"] = 32 << 20
		p.WriteConfigFile()
	}
	c := begin(t, pods)
	etcd := pods[0].Etcd()
	put := func(etcd *clientv3.Client, key string) error {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err := etcd.Put(ctx, key, string(make([]byte, 256<<10)))
		return err
	}
	for round := range 2 {
		for i := 0; put(etcd, fmt.Sprintf("/much/%06d", i)) == nil; i++ {
			require.Less(t, i, 1000, "there is a quota")
		}
		deleted, err := etcd.Delete(t.Context(), "/much/", clientv3.WithPrefix())
		require.NoError(t, err)
		_, err = etcd.Compact(t.Context(), deleted.Header.Revision)
		require.NoError(t, err)
		watch := harness.StartWatch()
		for _, p := range pods {
			harness.Eventually(t, "writes are taken again", func() bool { return put(p.Etcd(), "/room") == nil })
		}
		took := watch.Took()
		t.Logf("round %d: writes were possible at every member after %s", round, took)
		assert.Less(t, took, lifted)
		alarms, err := etcd.AlarmList(t.Context())
		require.NoError(t, err)
		assert.Empty(t, alarms.Alarms)
	}
	for _, run := range c.runs {
		run.AwaitReady()
	}
}
