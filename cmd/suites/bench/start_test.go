//go:build bench

package bench_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/harness"
)

const (
	startPairs  = 40 // with only 20, plain etcd's minimum varies by 50 ms because of its random election timeout
	memoryPairs = 5
	// settled is the idle time before a process's memory is measured.
	settled = 5 * time.Second
)

// startAndStop measures how long plain etcd and the wrapper take to start and stop. The two take turns, each time with
// a new volume.
func startAndStop(t *testing.T) []row {
	var start, outside, stop [2]series
	var alone series
	for range startPairs {
		for i, s := range both {
			r := s.start(t, harness.NewPod(t))
			start[i] = append(start[i], milliseconds(r.ready.Sub(r.started)))
			outside[i] = append(outside[i], r.outsideEtcd())
			stop[i] = append(stop[i], r.stop())
		}
		r := wrapped.start(t, harness.NewStandalonePod(t, nil))
		alone = append(alone, milliseconds(r.ready.Sub(r.started)))
		r.stop()
	}
	return []row{
		immediateStart(row{what: "start → ready, with a sidecar, ms", plain: start[0], wrapper: start[1]}),
		immediateStart(row{what: "start → ready, without a sidecar, ms", plain: start[0], wrapper: alone}),
		row{what: "start → ready, with a sidecar, excluding etcd's own start, ms", plain: outside[0], wrapper: outside[1]}.costsAtMost(50, "ms"),
		row{what: "SIGTERM → exit, idle, ms", plain: stop[0], wrapper: stop[1]}.costsAtMost(30, "ms"),
	}
}

// immediateStart sets the target for a start in which etcd does not wait for an election timeout. Plain etcd waits for
// the timeout even if the cluster has only one member.
func immediateStart(r row) row {
	quick, part := r.atMost(80, "ms"), r.timesAtMost(0.15, "plain")
	quick.target += ", " + part.target
	quick.met = quick.met && part.met
	return quick
}

// outsideEtcd returns the part of the start that is not spent in etcd, in milliseconds: the time until etcd's first
// step, and the time from etcd's log message that it is ready until the health check succeeds.
func (r *process) outsideEtcd() float64 {
	r.t.Helper()
	begin := r.logged("configuring peer listeners")
	// The health check may succeed before the log line has been written.
	end := max(r.ready.Sub(r.logged("ready to serve client requests")), 0)
	return milliseconds(begin.Sub(r.started) + end)
}

// reaction measures the time from the validation result to the configuration request. The member is one of three, so
// the wrapper cannot use a configuration that it has prefetched.
func reaction(t *testing.T) (rows []row) {
	for _, takes := range []time.Duration{50 * time.Millisecond, 500 * time.Millisecond, 2 * time.Second} {
		var late series
		for range 5 {
			p := harness.NewPod(t)
			p.WithoutQuorum()
			p.Sidecar.Takes = takes
			r := wrapped.launch(t, p)
			var concluded, asked time.Time
			harness.Eventually(t, "the configuration is requested after the result", func() bool {
				started := p.Sidecar.Requests(harness.StartPath)
				if len(started) == 0 {
					return false
				}
				concluded = started[0].At.Add(takes)
				asked = firstAfter(p.Sidecar, harness.ConfigPath, concluded)
				return !asked.IsZero()
			})
			late = append(late, milliseconds(asked.Sub(concluded)))
			require.NoError(t, r.cmd.Process.Kill())
		}
		what := fmt.Sprintf("validation result available → configuration requested, validation of %s, ms", takes)
		rows = append(rows, row{what: what, wrapper: late}.atMost(100, "ms"))
	}
	return rows
}

// firstAfter returns the time of the first request for a path after the given time, or the zero time if there is
// none.
func firstAfter(s *harness.Sidecar, path string, after time.Time) time.Time {
	for _, r := range s.Requests(path) {
		if r.At.After(after) {
			return r.At
		}
	}
	return time.Time{}
}

func idleMemory(t *testing.T) []row {
	var all, own [2]series
	for range memoryPairs {
		for i, s := range both {
			r := s.start(t, harness.NewPod(t))
			<-time.After(settled)
			all[i] = append(all[i], r.memory("VmRSS"))
			own[i] = append(own[i], r.memory("RssAnon"))
			r.stop()
		}
	}
	return []row{
		row{what: "idle RSS, MiB", plain: all[0], wrapper: all[1]}.costsAtMost(6, "MiB"),
		{what: "idle anonymous memory (heap, stacks), MiB", plain: own[0], wrapper: own[1]},
	}
}
