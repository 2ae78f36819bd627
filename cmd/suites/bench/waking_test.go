//go:build bench

package bench_test

import (
	"fmt"
	"net/http"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/harness"
)

// The delays of the sidecars are a tenth of those measured when three hibernated members wake up: real sidecars then
// query a cluster that cannot respond yet.
const (
	wakingInitialization = 3500 * time.Millisecond
	wakingConfig         = 3700 * time.Millisecond

	wakeRounds = 7
)

// wakeThree starts three gracefully stopped members, whose sidecars are slow, and measures how long they need in
// addition to the sidecars' delays.
func wakeThree(t *testing.T) []row {
	var excess series
	for range 3 {
		pods, runs := harness.Cluster(t, 3)
		for _, run := range runs {
			status, _ := run.Stop(syscall.SIGTERM)
			require.Equal(t, 0, status)
		}
		for _, p := range pods {
			p.Sidecar.Takes, p.Sidecar.Slow = wakingInitialization, wakingConfig
		}
		start := time.Now()
		runs = harness.StartAll(pods)
		excess = append(excess, milliseconds(time.Since(start)-max(wakingInitialization, wakingConfig)))
		for _, run := range runs {
			run.Kill()
		}
	}
	what := fmt.Sprintf("three stopped members start → all ready, excluding the sidecars' delays (initialization %s, configuration %s), ms", wakingInitialization, wakingConfig)
	return []row{row{what: what, wrapper: excess}.atMost(3000, "ms"), wakeTogether(t)}
}

// wakeTogether starts three stopped members at the same time. None of them is ready before they have elected a leader.
func wakeTogether(t *testing.T) row {
	var ready [2]series
	for range wakeRounds {
		for i, s := range both {
			t.Run("cluster", func(t *testing.T) { // the members are stopped at the end of this subtest
				members := launchThree(t, s)
				for _, r := range members {
					r.stop()
				}
				start := time.Now()
				for j, r := range members {
					members[j] = s.launch(t, r.pod)
				}
				for _, r := range members {
					r.await(http.StatusOK)
				}
				ready[i] = append(ready[i], milliseconds(time.Since(start)))
			})
		}
	}
	return row{what: "three stopped members start together → all ready, ms", plain: ready[0], wrapper: ready[1]}
}
