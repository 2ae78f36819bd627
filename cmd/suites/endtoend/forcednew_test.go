package endtoend_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"etcd-wrapper/cmd/suites/harness"
)

// A member that lags behind the other two is started with force-new-cluster by mistake. The other members must not
// join its cluster, which lacks acknowledged writes. They must wait, explain how to proceed, and serve once that
// member has been stopped.
func TestForceNewCluster_leftInTheFile(t *testing.T) {
	t.Parallel()
	c := newThree(t)
	c.runs[0].Shutdown()
	for i := range 20 {
		c.pods[1].Put(fmt.Sprintf("acknowledged-%d", i), "value")
	}
	for _, run := range c.runs[1:] {
		run.Shutdown()
	}
	lagging := c.pods[0]
	lagging.Config["force-new-cluster"] = true
	lagging.WriteConfigFile()
	alone := lagging.StartReady()
	alone.AwaitLine(harness.Line{"message": "force-new-cluster is set"})
	alone.Shutdown()

	alone = lagging.StartReady()
	alone.AwaitLine(harness.Line{"message": "ignoring force-new-cluster, because an earlier start applied it"})
	for i, p := range c.pods[1:] {
		c.runs[i+1] = p.Start()
	}
	for _, run := range c.runs[1:] {
		run.AwaitLine(harness.Line{"level": "warn", "message": "only 1 of the 3 members that the data lists, as after force-new-cluster"})
		run.AwaitLine(harness.Line{"message": "to keep this data, stop the running members"})
	}
	alone.Shutdown() // as the message advises
	for i, run := range c.runs[1:] {
		run.AwaitReady()
		for key := range 20 {
			assert.Equal(t, "value", c.pods[i+1].Get(fmt.Sprintf("acknowledged-%d", key)))
		}
	}
}
