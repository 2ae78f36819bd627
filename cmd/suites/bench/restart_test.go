//go:build bench

package bench_test

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"etcd-wrapper/cmd/suites/harness"
)

var restartRounds = flag.Int("restarts", 5, "number of rolling restarts of three members, for plain etcd and for the wrapper")

const (
	gapWriters = 16
	steadyTime = 2 * time.Second // how long clients write before and after each restart or leadership transfer
)

// rollingRestart measures the longest gap between a client's writes during a rolling restart of three members, and
// during leadership transfers without restarts.
func rollingRestart(t *testing.T) []row {
	var moved, restarted, failed [2]series
	for round := range *restartRounds {
		for i, s := range both {
			t.Run(fmt.Sprint("round ", round), func(t *testing.T) {
				members := launchThree(t, s)
				gap, _ := gapDuring(t, members, func() { moveLeaderAround(t, members) })
				moved[i] = append(moved[i], gap)
				gap, refused := gapDuring(t, members, func() { restartAll(t, s, members) })
				restarted[i], failed[i] = append(restarted[i], gap), append(failed[i], refused)
			})
		}
	}
	return []row{
		{what: "three `MoveLeader` requests: longest write gap of 16 clients, ms", plain: moved[0], wrapper: moved[1]},
		row{what: "rolling restart of three members: longest write gap of 16 clients, ms", plain: restarted[0], wrapper: restarted[1]}.neverMoreThan(1500, "ms"),
		row{what: "rolling restart of three members: failed writes", plain: failed[0], wrapper: failed[1]}.neverMoreThan(0, "writes"),
		row{what: "longest write gap: plain etcd's `MoveLeader` and the wrapper's rolling restart, ms", plain: moved[0], wrapper: restarted[1]}.timesAtMost(1.2, "`MoveLeader`"),
	}
}

// restartAlone measures how long clients cannot write while the only member of a cluster restarts.
func restartAlone(t *testing.T) []row {
	var restarted [2]series
	for round := range *restartRounds {
		for i, s := range both {
			t.Run(fmt.Sprint("round ", round), func(t *testing.T) {
				members := []*process{s.start(t, harness.NewPod(t))}
				end := harness.StartLatencyClients(t, gapWriters, func() *clientv3.Client { return reconnectingClient(t, endpoints(members)) })
				restartAll(t, s, members)
				restarted[i] = append(restarted[i], milliseconds(harness.Longest(end()).Longest))
			})
		}
	}
	return []row{row{what: "restart of a single member: longest write gap of 16 clients that reconnect after 10 ms, ms", plain: restarted[0], wrapper: restarted[1]}.neverMoreThan(300, "ms")}
}

// reconnectingClient returns a client that reconnects after 10 ms, because gRPC's default delay of one second would
// mask the length of the outage.
func reconnectingClient(t *testing.T, endpoints []string) *clientv3.Client {
	t.Helper()
	delay := grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1, MaxDelay: 10 * time.Millisecond}}
	return harness.NewClient(t, clientv3.Config{Endpoints: endpoints, DialOptions: []grpc.DialOption{grpc.WithConnectParams(delay)}})
}

// gapDuring writes from several clients while it calls do. It returns the longest gap between a client's acknowledged
// writes, in milliseconds, and the number of failed writes.
func gapDuring(t *testing.T, members []*process, do func()) (gap, failed float64) {
	t.Helper()
	end := harness.StartLatencyClients(t, gapWriters, func() *clientv3.Client {
		return harness.NewClient(t, clientv3.Config{Endpoints: endpoints(members)})
	})
	<-time.After(steadyTime)
	do()
	<-time.After(steadyTime)
	writers := end()
	for _, w := range writers {
		failed += float64(len(w.Failed))
	}
	longest := harness.Longest(writers)
	t.Logf("longest write gap: %s, until %s; %v writes failed; errors of the client with the longest gap: %v", longest.Longest, longest.LongestEnd.UTC().Format(time.StampMilli), failed, longest.Failed)
	return milliseconds(longest.Longest), failed
}

func endpoints(members []*process) (all []string) {
	for _, r := range members {
		all = append(all, r.pod.Endpoint())
	}
	return all
}

// findLeader returns the index of the leader and the IDs of all members.
func findLeader(t *testing.T, members []*process) (leader int, ids []uint64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
	defer cancel()
	for i, r := range members {
		status, err := r.pod.Etcd().Status(ctx, r.pod.Endpoint())
		require.NoError(t, err)
		if ids = append(ids, status.Header.MemberId); status.Leader == status.Header.MemberId {
			leader = i
		}
	}
	return leader, ids
}

// moveLeaderAround transfers leadership to each member once, and to the current leader last.
func moveLeaderAround(t *testing.T, members []*process) {
	t.Helper()
	leader, ids := findLeader(t, members)
	for range members {
		next := (leader + 1) % len(members)
		moveLeader(t, members[leader].pod.Etcd(), ids[next])
		leader = next
		<-time.After(steadyTime)
	}
}

func moveLeader(t *testing.T, client *clientv3.Client, to uint64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
	defer cancel()
	_, err := client.MoveLeader(ctx, to)
	require.NoError(t, err)
}

// restartAll restarts the members one at a time as a StatefulSet would: it starts with the last member and waits for
// each one to become ready.
func restartAll(t *testing.T, s *side, members []*process) {
	t.Helper()
	for i := range slices.Backward(members) {
		members[i].stop()
		members[i] = s.launch(t, members[i].pod)
		members[i].await(http.StatusOK)
		<-time.After(steadyTime)
	}
}
