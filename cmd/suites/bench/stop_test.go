//go:build bench

package bench_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"etcd-wrapper/cmd/suites/certificates"
	"etcd-wrapper/cmd/suites/harness"
)

const (
	watchPairs = 3
	watches    = 1000
	watchers   = 10 // number of clients that open the watches
)

// stopWithWatches measures how long plain etcd and the wrapper take to stop while clients have many watches open.
// Every watch has its own stream, which is the worst case.
func stopWithWatches(t *testing.T) (rows []row) {
	for _, connection := range []string{"without TLS", "with TLS"} {
		var stop [2]series
		for range watchPairs {
			for i, s := range both {
				p := harness.NewPod(t)
				if connection == "with TLS" {
					p.RequireClientCerts(certificates.NewAuthority(t, "ca"))
				}
				r := s.start(t, p)
				watch(p, t)
				stop[i] = append(stop[i], r.stop())
			}
		}
		what := fmt.Sprintf("SIGTERM → exit, %d watches %s, ms", watches, connection)
		rows = append(rows, row{what: what, plain: stop[0], wrapper: stop[1]}.atMost(300, "ms"))
	}
	return rows
}

type streamKey struct{}

// watch opens the watches and waits until etcd has confirmed them all.
func watch(p *harness.Pod, t *testing.T) {
	t.Helper()
	var opened []clientv3.WatchChan
	for client := range watchers {
		etcd := p.Etcd()
		for stream := range watches / watchers {
			ctx := context.WithValue(t.Context(), streamKey{}, stream) // a different context value forces a new stream
			key := fmt.Sprintf("key-%d-%d", client, stream)
			opened = append(opened, etcd.Watch(clientv3.WithRequireLeader(ctx), key, clientv3.WithCreatedNotify()))
		}
	}
	for _, watch := range opened {
		reply, ok := harness.Receive(t, "etcd confirms a watch", watch)
		require.True(t, ok && reply.Created, "etcd confirmed the watch")
	}
}
