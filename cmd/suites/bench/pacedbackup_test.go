//go:build bench

package bench_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	pace       = 1000 // puts per second
	pacers     = 20
	pacedPairs = 4
	pacedTime  = 2 * time.Second
)

// backupsAtPace measures puts at a fixed rate, which is that of a busy cluster but does not saturate the machine.
func backupsAtPace(t *testing.T) []row {
	var rates, medians, highest, work [3]series
	for pair := range pacedPairs {
		t.Run(fmt.Sprint("pair ", pair), func(t *testing.T) {
			runs, clients := startThree(t)
			for round := range loadRounds {
				for _, i := range measurementOrder(len(runs), pair, round) {
					before := runs[i].cpu()
					rate, took := paced(t, clients[i][:pacers])
					work[i] = append(work[i], (runs[i].cpu()-before)/(rate*pacedTime.Seconds()))
					rates[i], medians[i], highest[i] = append(rates[i], rate), append(medians[i], took.median()), append(highest[i], took.rank(0.99))
				}
			}
		})
	}
	const what = "1 KB puts at 1,000 per second, without and with backups: "
	return []row{
		row{what: what + "achieved rate per second", plain: rates[1], wrapper: rates[2]}.shareAtLeast(0.99),
		row{what: what + "median, ms", plain: medians[1], wrapper: medians[2]}.timesAtMost(1.05, "without"),
		{what: what + "p99, ms", plain: highest[1], wrapper: highest[2]},
		{what: what + "CPU time, µs", plain: work[1], wrapper: work[2]},
	}
}

// paced makes the clients put keys at a fixed total rate, and returns the achieved rate and the duration of each put
// in milliseconds.
func paced(t *testing.T, clients []*clientv3.Client) (rate float64, took series) {
	t.Helper()
	var mu sync.Mutex
	var putting sync.WaitGroup
	start := time.Now()
	for i, client := range clients {
		putting.Go(func() {
			var own series
			tick := time.NewTicker(time.Duration(len(clients)) * time.Second / pace)
			defer tick.Stop()
			for n := i; time.Since(start) < pacedTime; n += len(clients) {
				<-tick.C
				asked := time.Now()
				if !assert.NoError(t, putKilobyte(t.Context(), client, n)) {
					return
				}
				own = append(own, milliseconds(time.Since(asked)))
			}
			mu.Lock()
			defer mu.Unlock()
			took = append(took, own...)
		})
	}
	putting.Wait()
	return float64(len(took)) / time.Since(start).Seconds(), took
}
