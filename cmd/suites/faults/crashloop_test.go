package faults_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"etcd-wrapper/cmd/suites/harness"
)

var crashCycles = flag.Int("crash-cycles", 3, "number of times that the crash loop kills etcd")

// writers is the number of clients that write while etcd is being killed.
const writers = 5

// A crashloop kills a member repeatedly and records the writes that etcd has acknowledged.
type crashloop struct {
	t    *testing.T
	pod  *harness.Pod
	dice *rand.Rand
	kill func(run *harness.Run) // kills the process, or cuts the power

	mu           sync.Mutex
	acknowledged map[string]bool
}

// lifetime is the number of cycles after which a new volume is used, because the starts become slower as the data
// grows.
const lifetime = 100

// TestFaultCrashLoop kills etcd at random times while it is starting, serving writes and stopping. No acknowledged
// write may be lost. Several volumes are tested in parallel.
func TestFaultCrashLoop(t *testing.T) {
	t.Parallel()
	trial(t, "starting, serving writes, stopping", fmt.Sprintf("SIGKILL, %d times", *crashCycles))
	var writes atomic.Int64
	t.Cleanup(func() { t.Logf("%d cycles, %d acknowledged writes", *crashCycles, writes.Load()) })
	for done := 0; done < *crashCycles; done += lifetime {
		t.Run(fmt.Sprintf("from %d", done), func(t *testing.T) {
			t.Parallel()
			writes.Add(int64(crashLoop(t, harness.NewPod(t), min(lifetime, *crashCycles-done), (*harness.Run).Kill)))
		})
	}
}

func crashLoop(t *testing.T, p *harness.Pod, cycles int, kill func(run *harness.Run)) (writes int) {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	c := &crashloop{t: t, pod: p, dice: rand.New(rand.NewPCG(seed, seed)), kill: kill, acknowledged: map[string]bool{}}
	for cycle := range cycles {
		c.run(cycle)
	}
	run := c.pod.Start()
	run.AwaitReady()
	c.assertNothingLost()
	run.Shutdown()
	validations := map[string]int{}
	for _, mode := range c.pod.Sidecar.Modes() {
		validations[mode]++
	}
	t.Logf("%d cycles, %d acknowledged writes, none lost; validations by mode: %v", cycles, len(c.acknowledged), validations)
	return len(c.acknowledged)
}

// run starts a process and kills it at a random time: while it is starting, serving writes or stopping.
func (c *crashloop) run(cycle int) {
	run := c.pod.Start()
	moment := c.dice.IntN(4)
	if moment == 0 {
		c.sleep(run, 800*time.Millisecond)
		c.kill(run)
	} else {
		run.AwaitReady()
		c.write(run, cycle, moment == 1)
	}
	assertRecord(run, run.Cmd.ProcessState.ExitCode(), nil)
}

// write runs clients that write, and kills the process after a random time. If stopFirst is set, the process gets a
// SIGTERM shortly before the kill.
func (c *crashloop) write(run *harness.Run, cycle int, stopFirst bool) {
	client := c.pod.Etcd()
	ctx, stop := context.WithCancel(context.Background())
	var writing sync.WaitGroup
	for n := range writers {
		writing.Go(func() { c.writeOn(ctx, client, fmt.Sprintf("%d/%d", cycle, n)) })
	}
	c.sleep(run, 400*time.Millisecond)
	if stopFirst {
		send(syscall.SIGTERM)(run)
		c.sleep(run, 100*time.Millisecond)
	}
	c.kill(run)
	stop()
	writing.Wait()
	_ = client.Close() // the server has exited
}

func (c *crashloop) writeOn(ctx context.Context, client *clientv3.Client, prefix string) {
	for i := 0; ctx.Err() == nil; i++ {
		key := fmt.Sprintf("%s/%d", prefix, i)
		if _, err := client.Put(ctx, key, key); err == nil {
			c.mu.Lock()
			c.acknowledged[key] = true
			c.mu.Unlock()
		}
	}
}

// sleep waits for a random time, or until the process exits if that is sooner.
func (c *crashloop) sleep(run *harness.Run, most time.Duration) {
	select {
	case <-time.After(time.Duration(c.dice.Int64N(int64(most)))):
	case <-run.Ended:
	}
}

func (c *crashloop) assertNothingLost() {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
	defer cancel()
	reply, err := c.pod.Etcd().Get(ctx, "", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	require.NoError(c.t, err)
	exists := map[string]bool{}
	for _, kv := range reply.Kvs {
		exists[string(kv.Key)] = true
	}
	for key := range c.acknowledged {
		require.True(c.t, exists[key], "the acknowledged write %s exists", key)
	}
}
