package faults_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"etcd-wrapper/cmd/suites/harness"
)

// An access is a client operation on one register: a read, or a write of a unique value.
type access struct {
	key, value string
	write      bool
}

// registers is the porcupine model that the history is checked against: each key is an independent register.
var registers = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		keys := map[string][]porcupine.Operation{}
		for _, op := range history {
			key := op.Input.(access).key
			keys[key] = append(keys[key], op)
		}
		parts := [][]porcupine.Operation{}
		for _, part := range keys {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() any { return "" },
	Step: func(state, input, output any) (bool, any) {
		if asked := input.(access); asked.write {
			return true, asked.value
		}
		return state == output, state
	},
}

// A traffic contains the history of the operations of clients that continuously read and write.
type traffic struct {
	start   time.Time
	clients sync.WaitGroup

	mu      sync.Mutex
	history []porcupine.Operation
	writes  int // number of acknowledged writes
	unknown int // number of writes without a response
}

const (
	trafficClients = 6
	trafficKeys    = 3
	requestTimeout = 2 * time.Second
)

// loadHistory starts clients that read from and write to the pods' cluster, and returns a function that stops them.
func loadHistory(t *testing.T, pods []*harness.Pod) (tr *traffic, end func()) {
	t.Helper()
	tr = &traffic{start: time.Now()}
	endpoints := []string{}
	for _, p := range pods {
		endpoints = append(endpoints, p.Endpoint())
	}
	ctx, stop := context.WithCancel(context.Background())
	for n := range trafficClients {
		client := harness.NewClient(t, clientv3.Config{Endpoints: endpoints})
		tr.clients.Go(func() { tr.use(ctx, client, n) })
	}
	return tr, func() {
		stop()
		tr.clients.Wait()
	}
}

func (tr *traffic) use(ctx context.Context, client *clientv3.Client, number int) {
	for i := 0; ctx.Err() == nil; i++ {
		asked := access{key: fmt.Sprint(rand.IntN(trafficKeys)), value: fmt.Sprintf("%d/%d", number, i), write: i%2 == 0}
		tr.do(client, asked, number)
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// do performs an operation and adds it to the history. A write without a response may take effect at any later time,
// so it is recorded without an end. A read without a response is ignored.
func (tr *traffic) do(client *clientv3.Client, asked access, number int) {
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	op := porcupine.Operation{ClientId: number, Input: asked, Call: time.Since(tr.start).Nanoseconds()}
	value, err := asked.perform(ctx, client)
	op.Output, op.Return = value, time.Since(tr.start).Nanoseconds()
	tr.mu.Lock()
	defer tr.mu.Unlock()
	switch {
	case err == nil && asked.write:
		tr.writes++
	case asked.write:
		tr.unknown++
		op.Return = math.MaxInt64
	case err != nil:
		return
	}
	tr.history = append(tr.history, op)
}

func (a access) perform(ctx context.Context, client *clientv3.Client) (string, error) {
	if a.write {
		_, err := client.Put(ctx, a.key, a.value)
		return "", err
	}
	reply, err := client.Get(ctx, a.key)
	if err != nil || len(reply.Kvs) == 0 {
		return "", err
	}
	return string(reply.Kvs[0].Value), nil
}

func (tr *traffic) assertLinearizable(t *testing.T) {
	t.Helper()
	t.Logf("%d operations, %d acknowledged writes, %d writes without a response", len(tr.history), tr.writes, tr.unknown)
	require.Equal(t, porcupine.Ok, porcupine.CheckOperationsTimeout(registers, tr.history, 2*time.Minute), "the history must be linearizable")
}

// TestFaultClusterStaysLinearizable restarts, kills and pauses the members of a cluster while clients are reading and
// writing. The history of all operations must be linearizable. A final read of each key detects writes that were lost.
func TestFaultClusterStaysLinearizable(t *testing.T) {
	t.Parallel()
	rounds := 1
	if *faults {
		rounds = 4
	}
	pods, runs := harness.Cluster(t, 3)
	tr, end := loadHistory(t, pods)
	for range rounds {
		for state, disturb := range disturbances {
			t.Run(state, func(t *testing.T) {
				trial(t, "serving, three members, under load", state)
				disturb(pods, runs)
			})
		}
	}
	end()
	for _, key := range []string{"0", "1", "2"} {
		tr.do(pods[0].Etcd(), access{key: key}, trafficClients)
	}
	require.Greater(t, tr.writes, 100)
	tr.assertLinearizable(t)
	for _, run := range runs {
		run.Shutdown()
	}
}

// disturbances lists functions that stop, kill or pause members and then wait until all members are ready again. They
// replace the runs of processes that have exited.
var disturbances = map[string]func(pods []*harness.Pod, runs []*harness.Run){
	"rolling restart by SIGTERM": func(pods []*harness.Pod, runs []*harness.Run) {
		for i := range runs {
			runs[i].Shutdown()
			runs[i] = pods[i].Start()
			runs[i].AwaitReady()
		}
	},
	"SIGKILL of a random member": func(pods []*harness.Pod, runs []*harness.Run) {
		i := rand.IntN(len(runs))
		runs[i].Kill()
		runs[i] = pods[i].Start()
		runs[i].AwaitReady()
	},
	"SIGTERM of the leader": func(pods []*harness.Pod, runs []*harness.Run) {
		i := awaitLeader(runs[0].T, pods)
		runs[i].Shutdown()
		runs[i] = pods[i].Start()
		runs[i].AwaitReady()
	},
	"SIGSTOP and SIGCONT of the leader": func(pods []*harness.Pod, runs []*harness.Run) {
		i := awaitLeader(runs[0].T, pods)
		runs[i].Signal(syscall.SIGSTOP)
		others := slices.Delete(slices.Clone(pods), i, i+1)
		awaitLeader(runs[i].T, others)
		runs[i].Signal(syscall.SIGCONT)
		runs[i].AwaitReady()
	},
}

// awaitLeader waits until one of the pods is the leader, and returns its index.
func awaitLeader(t *testing.T, pods []*harness.Pod) (leader int) {
	t.Helper()
	harness.Eventually(t, "one of the members is the leader", func() bool {
		leader = slices.IndexFunc(pods, isLeader)
		return leader >= 0
	})
	return leader
}

func isLeader(p *harness.Pod) bool {
	p.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	status, err := p.Etcd().Status(ctx, p.Endpoint())
	return err == nil && status.Leader == status.Header.MemberId
}

func TestLinearizability_violationsAreFound(t *testing.T) {
	write := porcupine.Operation{Input: access{key: "0", value: "new", write: true}, Call: 1, Return: 2}
	for seen, fine := range map[string]bool{"new": true, "": false} {
		read := porcupine.Operation{ClientId: 1, Input: access{key: "0"}, Output: seen, Call: 3, Return: 4}
		require.Equal(t, fine, porcupine.CheckOperations(registers, []porcupine.Operation{write, read}), "a read of %q", seen)
	}
}
