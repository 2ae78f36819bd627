//go:build bench

package bench_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// The load on a member of a small cluster.
const (
	smallGap  = time.Second * 2 / 7 // pause between two puts, which results in 3.5 puts per second
	smallPuts = 6000                // total number of puts; those that do not fit into the window are sent at full speed
)

// footprint measures the memory and CPU time of members under low load. All members run at the same time, because
// neither measurement depends on speed. With -window=10m, each member receives 2,100 puts.
func footprint(t *testing.T) []row {
	idle, watched, busy := startPlainAnd(t, notBackedUp, backedUp), startPlainAnd(t, notBackedUp), startPlainAnd(t, notBackedUp, backedUp)
	for _, run := range watched {
		watch(run.pod, t)
	}
	work := putSlowly(t, busy, *window)
	after := memoryOf(busy)
	puts := int(*window / smallGap)
	for _, run := range busy {
		putMany(t, run.pod.Etcd(), puts, smallPuts)
	}
	<-time.After(3 * time.Second) // wait until the last segment has been stored
	full := memoryOf(busy)
	idleRSS, watchedRSS := memoryOf(idle), memoryOf(watched)
	minutes := fmt.Sprintf("%.0f min", window.Minutes())
	slowly := fmt.Sprintf("%d puts of 500 bytes in %s", puts, minutes)
	return []row{
		row{what: "RSS, idle for " + minutes + ", MiB", plain: idleRSS[0], wrapper: idleRSS[1]}.costsAtMost(6, "MiB"),
		row{what: "RSS, idle for " + minutes + ", with a folder store, MiB", plain: idleRSS[0], wrapper: idleRSS[2]}.costsAtMost(10, "MiB"),
		row{what: "RSS, 1,000 watches, idle for " + minutes + ", MiB", plain: watchedRSS[0], wrapper: watchedRSS[1]}.costsAtMost(6, "MiB"),
		row{what: "CPU time, " + slowly + ", s", plain: work[0], wrapper: work[1]}.timesAtMost(1.1, "plain"),
		row{what: "CPU time, " + slowly + ", with a folder store, s", plain: work[0], wrapper: work[2]}.timesAtMost(1.25, "plain"),
		row{what: "RSS after " + slowly + ", with a folder store, MiB", plain: after[0], wrapper: after[2]}.costsAtMost(10, "MiB"),
		row{what: fmt.Sprintf("RSS after %d puts of 500 bytes, with a folder store, MiB", smallPuts), plain: full[0], wrapper: full[2]}.costsAtMost(10, "MiB"),
	}
}

// putSlowly puts keys on every member at the rate of a small cluster and returns the CPU time of each member in
// seconds.
func putSlowly(t *testing.T, runs []*process, duration time.Duration) (work []series) {
	t.Helper()
	var putting sync.WaitGroup
	before := make([]float64, len(runs))
	for i, run := range runs {
		before[i] = run.cpu()
		client := run.pod.Etcd()
		putting.Go(func() {
			tick := time.NewTicker(smallGap)
			defer tick.Stop()
			for n := range int(duration / smallGap) {
				<-tick.C
				if !assert.NoError(t, putSmall(t.Context(), client, n)) {
					return
				}
			}
		})
	}
	putting.Wait()
	for i, run := range runs {
		work = append(work, series{(run.cpu() - before[i]) / 1e6})
	}
	return work
}

func putMany(t *testing.T, client *clientv3.Client, from, to int) {
	t.Helper()
	for n := from; n < to; n++ {
		require.NoError(t, putSmall(t.Context(), client, n))
	}
}

// memoryOf returns the resident memory of each process in MiB.
func memoryOf(runs []*process) (rss []series) {
	for _, run := range runs {
		rss = append(rss, series{run.memory("VmRSS")})
	}
	return rss
}
