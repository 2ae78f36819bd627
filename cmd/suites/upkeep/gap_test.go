package upkeep_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/harness"
)

// longestGap is how long a writer may have to wait while members are defragmented, one after the other.
const longestGap = 1500 * time.Millisecond

func TestThreeMembersAreDefragmentedUnderWritesAndNobodyWaitsLong(t *testing.T) {
	if !*whole {
		t.Skip("takes a minute: make test-upkeep")
	}
	pods, runs := harness.Cluster(t, 3)
	c := client(t, pods)
	grow(t, c, "/kept/", *inUse)
	grow(t, c, "/garbage/", *inUse)
	for _, run := range runs {
		require.Zero(t, run.Status().Upkeep.Done)
	}
	end := work(t, pods, 64)
	thin(t, c, "/garbage/")
	for _, run := range runs {
		harness.Eventually(t, "it is defragmented", func() bool { return run.Status().Upkeep.Done == 1 })
	}
	writers := end()
	for i, run := range runs {
		is := run.Status()
		t.Logf("member %d: %.2f s, %d MiB are %d MiB now; leader %v", i, is.Upkeep.Last.Took, is.Upkeep.Last.Before>>20, is.Upkeep.Last.After>>20, is.Leader)
		assert.Equal(t, "threshold", is.Upkeep.Last.Origin)
	}
	for _, w := range writers {
		t.Logf("%d writes, the longest gap %s at %s, failed %v", w.acked, w.gap, w.at.UTC().Format(time.StampMilli), w.failed)
		assert.Less(t, w.gap, longestGap)
		assert.Empty(t, w.failed)
	}
	nothingIsLost(t, c, writers)
}
