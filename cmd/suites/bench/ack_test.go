//go:build bench

package bench_test

import (
	"bytes"
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"etcd-wrapper/backup/store/locate"
	"etcd-wrapper/backup/store/storetest"
	"etcd-wrapper/backup/store/storetest/servers"
	"etcd-wrapper/cmd/suites/harness"
)

const (
	ackLatency = 5 * time.Millisecond
	ackPuts    = 300 // number of puts by a single client, and of direct uploads to compare them with
	ackRounds  = 20
)

// acknowledgement compares --backup-ack=stored with --backup-ack=local. The backups are stored on an S3 server that
// responds with latency.
func acknowledgement(t *testing.T) []row {
	require.NoError(t, flag.Set("servers", "true"), "this topic requires an S3 server, which -servers enables")
	t.Setenv("AWS_ACCESS_KEY_ID", servers.S3Access)
	t.Setenv("AWS_SECRET_ACCESS_KEY", servers.S3Secret)
	server := servers.S3(t)
	address := func(bucket string) string {
		servers.MakeS3Bucket(t, server, bucket)
		proxy := storetest.NewProxy(t, server)
		proxy.Inject(storetest.Faults{Delay: ackLatency})
		return servers.S3URL(proxy.Endpoint.String(), bucket, "main")
	}
	uploads := timeUploads(t, address("alone"))
	var runs [2]*process
	for i, mode := range []string{"local", "stored"} {
		p := harness.NewStandalonePod(t, nil)
		store := address(mode)
		runs[i] = standaloneSide(func(*harness.Pod) []string { return []string{"--backup-store=" + store, "--backup-ack=" + mode} }).start(t, p)
	}
	var clients [2][]*clientv3.Client
	for i, run := range runs {
		clients[i] = connect(run.pod)
		require.NoError(t, put(t.Context(), clients[i][0], 0))
		drive(t, clients[i], get) // open the connections
	}
	var gets, puts [2]cost
	measure := func(costs *[2]cost, do operation) {
		for round := range ackRounds {
			for turn := range runs {
				side := (turn + round) % len(runs)
				costs[side].measure(t, runs[side], clients[side], do)
			}
		}
	}
	measure(&gets, get)
	var alone series
	for n := range ackPuts {
		asked := time.Now()
		require.NoError(t, put(t.Context(), clients[1][0], n))
		alone = append(alone, milliseconds(time.Since(asked)))
	}
	measure(&puts, put)
	median, highest := uploads.median(), uploads.rank(0.99)
	return []row{
		{what: "direct upload to a store with 5 ms of added latency, median, ms", wrapper: uploads},
		row{what: "put with `--backup-ack=stored`, one client, median, ms", wrapper: series{alone.median()}}.atMost(1.5*median+3, "ms"),
		row{what: "put with `--backup-ack=stored`, one client, p99, ms", wrapper: series{alone.rank(0.99)}}.atMost(2.5*highest+10, "ms"),
		row{what: "puts per second with `local` and with `stored`, 100 clients", plain: puts[0].rate, wrapper: puts[1].rate}.shareAtLeast(0.8),
		row{what: "gets per second with `local` and with `stored`, without writes", plain: gets[0].rate, wrapper: gets[1].rate}.shareAtLeast(0.98),
		{what: "get with `local` and with `stored`, without writes, CPU time, µs", plain: gets[0].work, wrapper: gets[1].work},
	}
}

// timeUploads returns the durations of direct uploads to a store, in milliseconds.
func timeUploads(t *testing.T, address string) (took series) {
	t.Helper()
	store, err := locate.Open(address)
	require.NoError(t, err)
	for n := range ackPuts {
		asked := time.Now()
		require.NoError(t, store.Put(t.Context(), fmt.Sprint("upload/", n), bytes.NewReader(make([]byte, 1<<10))))
		took = append(took, milliseconds(time.Since(asked)))
	}
	return took
}
