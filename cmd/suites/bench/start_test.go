//go:build bench

package bench_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"etcd-wrapper/cmd/suites/harness"
)

const (
	startPairs   = 40 // the median of plain etcd's election timer needs as many
	restartPairs = 10
	memoryPairs  = 5
	// settled is how long an idle process is left alone before its memory is looked at.
	settled = 5 * time.Second
)

// startAndStop runs plain etcd, the wrapper beside a sidecar that has nothing to do, and the wrapper by itself in turns, each on a new volume.
func startAndStop(t *testing.T) []row {
	var start, outside, stop [3]series
	for range startPairs {
		for i, s := range []*side{plain, wrapped, alone} {
			r := s.start(t, podOf(t, s))
			start[i] = append(start[i], milliseconds(r.ready.Sub(r.began)))
			outside[i] = append(outside[i], r.outsideEtcd())
			stop[i] = append(stop[i], r.stop())
		}
	}
	return append([]row{
		row{what: "start → ready beside a sidecar, ms", plain: start[0], wrapper: start[1]}.atMostAndShare(80, "ms", 0.15),
		row{what: "start → ready standalone, ms", plain: start[0], wrapper: start[2]}.atMostAndShare(80, "ms", 0.15),
		row{what: "of the one beside a sidecar outside etcd's own start → ready, ms", plain: outside[0], wrapper: outside[1]}.costsAtMost(50, "ms"),
		row{what: "SIGTERM → exit, idle, ms", plain: stop[0], wrapper: stop[1]}.costsAtMost(30, "ms"),
	}, restartOfOne(t))
}

func podOf(t *testing.T, s *side) *harness.Pod {
	t.Helper()
	if s == alone {
		return harness.NewStandalonePod(t, nil)
	}
	return harness.NewPod(t)
}

// restartOfOne is the longest that a client has to wait that tries again every few milliseconds, when the only member is restarted.
func restartOfOne(t *testing.T) row {
	var gaps [2]series
	for range restartPairs {
		for i, s := range both {
			r := s.start(t, podOf(t, s))
			end := harness.WritersOf(t, 1, func() *clientv3.Client { return impatient(t, r.pod) })
			r.stop()
			r = s.start(t, r.pod)
			r.pod.Put("key", "value")
			<-time.After(unhurried)
			gaps[i] = append(gaps[i], milliseconds(harness.Longest(end()).Gap))
			r.stop()
		}
	}
	return row{what: "restart of the only member: longest gap of a writer, ms", plain: gaps[0], wrapper: gaps[1]}.neverMoreThan(300, "ms")
}

// impatient is a client that does not wait for a second before it connects again.
func impatient(t *testing.T, p *harness.Pod) *clientv3.Client {
	t.Helper()
	pause := backoff.Config{BaseDelay: 5 * time.Millisecond, Multiplier: 1, MaxDelay: 5 * time.Millisecond}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{p.Endpoint()}, DialTimeout: harness.Patience, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{Backoff: pause, MinConnectTimeout: time.Second})},
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// outsideEtcd is the time before etcd's first own step and after etcd called itself ready, in milliseconds.
func (r *process) outsideEtcd() float64 {
	r.t.Helper()
	begin := r.logged("configuring peer listeners")
	// The health may be seen before the line is written.
	end := max(r.ready.Sub(r.logged("ready to serve client requests")), 0)
	return milliseconds(begin.Sub(r.began) + end)
}

// reaction is the time from the verdict of a validation to the request for the configuration. The member is one of
// three, so that the early fetch can't be used.
func reaction(t *testing.T) (rows []row) {
	for _, takes := range []time.Duration{50 * time.Millisecond, 500 * time.Millisecond, 2 * time.Second} {
		var late series
		for range 5 {
			p := harness.NewPod(t)
			p.WithoutQuorum()
			p.Sidecar.Takes = takes
			r := wrapped.launch(t, p)
			var asked time.Time
			harness.Eventually(t, "the configuration is asked for after the verdict", func() bool {
				asked = firstAfter(p.Sidecar, harness.ConfigPath, p.Sidecar.LastVerdict())
				return !asked.IsZero()
			})
			late = append(late, milliseconds(asked.Sub(p.Sidecar.LastVerdict())))
			require.NoError(t, r.cmd.Process.Kill())
		}
		what := fmt.Sprintf("`Successful` available → config asked for, validation of %s, ms", takes)
		rows = append(rows, row{what: what, wrapper: late}.atMost(100, "ms"))
	}
	return rows
}

// firstAfter is when a path was first asked for after a time, the zero time if that is still to come.
func firstAfter(s *harness.Sidecar, path string, after time.Time) time.Time {
	for _, r := range s.Requests(path) {
		if !after.IsZero() && r.At.After(after) {
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
		{what: "of that anonymous (heap, stacks), MiB", plain: own[0], wrapper: own[1]},
	}
}
