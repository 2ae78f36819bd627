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

// quietly writes at least the given number of log entries and then stops writing.
func (c *three) quietly(entries int) {
	c.Helper()
	ctx, cancel := context.WithTimeout(c.Context(), 5*harness.Patience)
	defer cancel()
	client := c.pods[0].Etcd()
	var writers sync.WaitGroup
	const many = 100
	for w := range many {
		writers.Go(func() {
			for i := range entries / many {
				_, err := client.Put(ctx, fmt.Sprintf("key-%d", w), fmt.Sprint(i))
				for errors.Is(err, rpctypes.ErrTimeout) { // on a busy machine
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

// A lost member must become ready even in an idle cluster. After installing a snapshot from its leader, plain etcd
// rejects its own requests and logs each rejection until another entry is committed.
func TestLostMember_idleCluster(t *testing.T) {
	t.Parallel()
	losses := map[int]int{100: 2} // the second loss follows a rejoin
	if *members {
		losses = map[int]int{100: 10, 10_000: 10}
	}
	for snapshots, times := range losses {
		t.Run(fmt.Sprint(snapshots), func(t *testing.T) {
			t.Parallel()
			pods := harness.StandaloneMembers(t, 3)
			for _, p := range pods {
				p.Config["snapshot-count"] = snapshots
				p.Config["unsafe-no-fsync"] = true // for speed; data that a killed process has written survives
				p.WriteConfigFile()
			}
			c := startThree(t, pods)
			c.quietly(6_000 + snapshots) // etcd rejects requests if it lags 5,000 entries behind
			before := c.pods[0].Revision()
			run := c.runs[2]
			for range times {
				run.LoseVolume()
				run = c.pods[2].StartReady()
				c.requireWhole()
				assert.Less(t, run.Log.Lines(), 10_000, "lines of log")
			}
			assert.Equal(t, before, c.pods[0].Revision(), "the rejoin has written nothing")
		})
	}
}
