package endtoend_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"etcd-wrapper/cmd/suites/harness"
)

// fillLog writes keys until etcd's log has grown by the given number of entries.
func (c *three) fillLog(entries int) {
	c.Helper()
	ctx, cancel := context.WithTimeout(c.Context(), 5*harness.Patience)
	defer cancel()
	client := c.pods[0].Etcd()
	var writers sync.WaitGroup
	const clients = 100
	for w := range clients {
		writers.Go(func() {
			for i := range entries / clients {
				_, err := client.Put(ctx, fmt.Sprintf("key-%d", w), fmt.Sprint(i))
				for errors.Is(err, rpctypes.ErrTimeout) { // may happen on a busy machine
					_, err = client.Put(ctx, fmt.Sprintf("key-%d", w), fmt.Sprint(i))
				}
				if !assert.NoError(c, err) {
					return
				}
			}
		})
	}
	writers.Wait()
}

// A lost member must become ready even if no client writes. Plain etcd that has installed a snapshot from its leader
// rejects its own requests, and logs each rejection, until another entry is committed.
func TestLostMember_idleCluster(t *testing.T) {
	t.Parallel()
	losses := map[int]int{100: 2} // number of losses by snapshot-count; the second loss follows a rejoin
	if *members {
		losses = map[int]int{100: 10, 10_000: 10}
	}
	for snapshots, times := range losses {
		t.Run(fmt.Sprint(snapshots), func(t *testing.T) {
			t.Parallel()
			pods := harness.StandaloneMembers(t, 3)
			for _, p := range pods {
				p.Config["snapshot-count"] = snapshots
				p.Config["unsafe-no-fsync"] = true // for speed; safe because only processes are killed
				p.WriteConfigFile()
			}
			c := startThree(t, pods)
			// A member that lags more than 5,000 entries behind rejects requests.
			c.fillLog(6_000 + snapshots)
			before := c.pods[0].Revision()
			run := c.runs[2]
			for range times {
				run.LoseVolume()
				run = c.pods[2].StartReady()
				c.requireAllVoters()
				assert.Less(t, run.Log.Lines(), 10_000, "number of log lines")
			}
			assert.Equal(t, before, c.pods[0].Revision(), "the rejoin writes no keys")
		})
	}
}
