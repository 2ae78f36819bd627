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

// The delays are a tenth of those of real sidecars, which query a cluster that cannot answer yet when three
// hibernated members wake up.
const (
	wakingInitialization = 3500 * time.Millisecond
	wakingConfig         = 3700 * time.Millisecond

	wakings = 7
)

// wakeThree starts three gracefully stopped members with slow sidecars.
func wakeThree(t *testing.T) []row {
	var beyond series
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
		beyond = append(beyond, milliseconds(time.Since(start)-max(wakingInitialization, wakingConfig)))
		for _, run := range runs {
			run.Kill()
		}
	}
	what := fmt.Sprintf("three members wake → ready, beyond their sidecars' own time (initialization %s, configuration %s), ms", wakingInitialization, wakingConfig)
	return []row{row{what: what, wrapper: beyond}.atMost(3000, "ms"), wakeTogether(t)}
}

// wakeTogether starts three stopped members at the same time. There is no leader at first, so all members wait for
// one.
func wakeTogether(t *testing.T) row {
	var ready [2]series
	for range wakings {
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
	return row{what: "three members wake together → all are ready, ms", plain: ready[0], wrapper: ready[1]}
}
