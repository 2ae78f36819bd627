//go:build bench

package bench_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"etcd-wrapper/cmd/suites/harness"
)

const (
	loadClients = 100
	loadPairs   = 10
	// Many short rounds are used so that other load on the machine affects plain etcd and the wrapper equally.
	loadRounds  = 8
	probeRounds = 40
	roundTime   = 400 * time.Millisecond

	probers  = 20
	probeGap = probers * time.Second / 2000 // pause between two probes of a prober; all probers send 2,000 per second
)

// An operation sends a request. n is the number of the request, from which the operation derives the key.
type operation func(ctx context.Context, client *clientv3.Client, n int) error

// put, putSmall and putKilobyte put one of 1,000 keys. The value has 256 bytes, 500 bytes or 1 KiB, respectively.
var put, putSmall, putKilobyte = putBytes(256), putBytes(500), putBytes(1 << 10)

func putBytes(size int) operation {
	value := strings.Repeat("v", size)
	return func(ctx context.Context, client *clientv3.Client, n int) error {
		_, err := client.Put(ctx, fmt.Sprintf("key-%d", n%1000), value)
		return err
	}
}

func get(ctx context.Context, client *clientv3.Client, n int) error {
	_, err := client.Get(ctx, fmt.Sprintf("key-%d", n%1000))
	return err
}

func connect(p *harness.Pod) []*clientv3.Client {
	clients := make([]*clientv3.Client, loadClients)
	for i := range clients {
		clients[i] = p.Etcd()
	}
	return clients
}

// drive makes every client repeat the operation for one round, and returns the operations per second and the 99th
// percentile latency in milliseconds.
func drive(t *testing.T, clients []*clientv3.Client, do operation) (rate, p99 float64) {
	t.Helper()
	var mu sync.Mutex
	var took series
	var working sync.WaitGroup
	start := time.Now()
	for i, client := range clients {
		working.Go(func() {
			var own series
			for n := i; time.Since(start) < roundTime; n++ {
				asked := time.Now()
				if !assert.NoError(t, do(t.Context(), client, n)) {
					return
				}
				own = append(own, milliseconds(time.Since(asked)))
			}
			mu.Lock()
			defer mu.Unlock()
			took = append(took, own...)
		})
	}
	working.Wait()
	return float64(len(took)) / time.Since(start).Seconds(), took.rank(0.99)
}

// loads lists the operations that are measured with plain etcd and with the wrapper.
var loads = []struct {
	name string
	do   operation
}{{"put", put}, {"linearizable get", get}}

// A cost contains the measurements for a load, with one value per round.
type cost struct{ rate, p99, work series }

// underLoad runs plain etcd and the wrapper at the same time and loads them in turn. Several pairs of processes are
// measured, because one process may be 20% slower than another for its whole lifetime, even if both run the same
// program. Other load on the machine distorts rates and latencies, but not the CPU time per operation.
func underLoad(t *testing.T) (rows []row) {
	costs := make([][2]cost, len(loads))
	for pair := range loadPairs {
		t.Run(fmt.Sprint("pair ", pair), func(t *testing.T) { loadPair(t, pair, costs) })
	}
	for i, load := range loads {
		plain, wrapper := costs[i][0], costs[i][1]
		rows = append(rows,
			row{what: load.name + "s per second, 100 clients", plain: plain.rate, wrapper: wrapper.rate}.shareAtLeast(0.98),
			row{what: load.name + ", 100 clients, p99, ms", plain: plain.p99, wrapper: wrapper.p99}.shareAtMost(0.98),
			row{what: load.name + ", CPU time, µs", plain: plain.work, wrapper: wrapper.work}.shareAtMost(0.98))
	}
	return rows
}

func loadPair(t *testing.T, pair int, costs [][2]cost) {
	var runs [2]*process
	var clients [2][]*clientv3.Client
	for i, s := range both {
		runs[i] = s.start(t, harness.NewPod(t))
		clients[i] = connect(runs[i].pod)
		drive(t, clients[i], put) // open the connections and write the keys that are read later
	}
	for i, load := range loads {
		for round := range loadRounds {
			for turn := range both {
				side := (turn + round + pair) % len(both)
				costs[i][side].measure(t, runs[side], clients[side], load.do)
			}
		}
	}
}

func (c *cost) measure(t *testing.T, r *process, clients []*clientv3.Client, do operation) {
	before := r.cpu()
	rate, p99 := drive(t, clients, do)
	c.work = append(c.work, (r.cpu()-before)/(rate*roundTime.Seconds()))
	c.rate, c.p99 = append(c.rate, rate), append(c.p99, p99)
}

// underProbes compares the rate of puts with and without 2,000 /readyz requests per second. Because the probes also
// compete with clients and servers for CPU time, a third series sends the same probes to another process.
func underProbes(t *testing.T) []row {
	r := wrapped.start(t, harness.NewPod(t))
	clients := connect(r.pod)
	drive(t, clients, put)
	elsewhere := startWithoutEtcd(t)
	var quiet, foreign, probed, late series
	for range probeRounds {
		rate, _ := drive(t, clients, put)
		quiet = append(quiet, rate)
		end := probe(t, elsewhere, "/livez")
		rate, _ = drive(t, clients, put)
		end()
		foreign = append(foreign, rate)
		end = probe(t, r.pod.Port, "/readyz")
		rate, _ = drive(t, clients, put)
		end()
		probed = append(probed, rate)
		end = probe(t, r.pod.Port, "/readyz")
		<-time.After(roundTime)
		late = append(late, end())
	}
	return []row{
		row{what: "`/readyz` at 2,000 requests per second, p99, ms", wrapper: late}.atMost(2, "ms"),
		row{what: "puts per second: without and with 2,000 probes per second", plain: quiet, wrapper: probed}.shareAtLeast(0.98),
		row{what: "puts per second: with probes of another process and of the wrapper", plain: foreign, wrapper: probed}.shareAtLeast(0.98),
	}
}

// startWithoutEtcd starts a wrapper that never starts etcd, because its sidecar's validation does not end, and returns
// the wrapper's port.
func startWithoutEtcd(t *testing.T) (port int) {
	t.Helper()
	p := harness.NewPod(t)
	p.Sidecar.Takes = harness.Forever
	r := wrapped.launch(t, p)
	r.await(http.StatusServiceUnavailable)
	return p.Port
}

// probe sends probes from several probers until end is called, which returns the probes' 99th percentile latency in
// milliseconds.
func probe(t *testing.T, port int, path string) (end func() float64) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var mu sync.Mutex
	var took series
	var working sync.WaitGroup
	for range probers {
		working.Go(func() {
			own := sendProbes(ctx, t, port, path)
			mu.Lock()
			defer mu.Unlock()
			took = append(took, own...)
		})
	}
	return func() float64 {
		cancel()
		working.Wait()
		require.NotEmpty(t, took)
		return took.rank(0.99)
	}
}

// sendProbes sends one probe after another until ctx is done, and returns their latencies in milliseconds. It writes
// the HTTP requests itself, because a net/http client would use more CPU time than the server.
func sendProbes(ctx context.Context, t *testing.T, port int, path string) (took series) {
	connection, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if !assert.NoError(t, err) {
		return nil
	}
	defer connection.Close()
	request, reply := []byte("GET "+path+" HTTP/1.1\r\nHost: pod\r\n\r\n"), make([]byte, 4096)
	tick := time.NewTicker(probeGap)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return took
		case <-tick.C:
		}
		asked := time.Now()
		_, err := connection.Write(request)
		n, readErr := connection.Read(reply)
		took = append(took, milliseconds(time.Since(asked)))
		if !assert.NoError(t, errors.Join(err, readErr)) || !assert.Contains(t, string(reply[:n]), " 200 OK") {
			return took
		}
	}
}
