package faults_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"etcd-wrapper/cmd/suites/harness"
)

// slowFlush makes strace delay each flush of the follower's log by 0.7 s. etcd flushes its database every 0.1 s, so
// the database on the disk is ahead of the log.
const slowFlush = "delay_enter=700000"

// After a power loss, the database of a follower that flushes its log slowly may contain entries that are missing from
// its log. The follower must then refuse to start and explain that it must be replaced. The other members must keep
// serving, and no acknowledged write may be lost.
func TestFaultPowerLoss_laggingFollower(t *testing.T) {
	t.Parallel()
	onlyWithFaults(t)
	harness.NeedStrace(t)
	trial(t, "follower with a slow log", "power loss")
	pods := harness.Members(t, 3)
	follower := pods[2]
	disk := harness.NewDisk(follower, diskSize)
	first, second := pods[0].Start(), pods[1].Start()
	first.AwaitReady() // one of these two members is the leader, so the third one will be a follower
	follower.ExpectTerminationMessage()
	var acknowledged []string
	run := follower.Start()
	for losses := 0; awaitReadyOrExit(run); losses++ {
		require.Less(t, losses, 20, "after 20 power losses, the database must have been ahead of the log once")
		attach(run, harness.CallPoint{Call: "fdatasync", Path: wal(follower)}.Inject(slowFlush)...)
		acknowledged = append(acknowledged, writeWhile(pods[0], func() {
			start := time.Now()
			harness.Eventually(t, "clients have written for 4 s", func() bool { return time.Since(start) > 4*time.Second })
			disk.CutPower(run)
		})...)
		run = follower.Start()
	}
	require.Equal(t, 70, run.Exit(harness.Patience))
	assertExplained(follower, run, "move the data directory aside and replace the member; the other members have the missing entries")
	for _, p := range pods[:2] {
		reply, err := p.Etcd().Get(t.Context(), "key-", clientv3.WithPrefix())
		require.NoError(t, err)
		var kept []string
		for _, row := range reply.Kvs {
			kept = append(kept, string(row.Value))
		}
		assert.Subset(t, kept, acknowledged)
	}
	first.Shutdown()
	second.Kill()
}

// writeWhile runs clients while it calls do, and returns the keys that etcd has acknowledged. The value of each key is
// its name.
func writeWhile(p *harness.Pod, do func()) (acknowledged []string) {
	var writers sync.WaitGroup
	var mu sync.Mutex
	done := make(chan struct{})
	for writer := range 6 {
		client := p.Etcd()
		writers.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-done:
					return
				default:
				}
				key := fmt.Sprintf("key-%d-%d", writer, n)
				if _, err := client.Put(p.T.Context(), key, key); err == nil {
					mu.Lock()
					acknowledged = append(acknowledged, key)
					mu.Unlock()
				}
			}
		})
	}
	do()
	close(done)
	writers.Wait()
	return acknowledged
}
