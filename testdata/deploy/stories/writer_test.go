package stories

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"etcd-wrapper/testdata/deploy/cluster"
)

// A writer writes one key after another and records which writes are acknowledged.
type writer struct {
	stop    context.CancelFunc
	ended   chan struct{}
	enough  chan struct{} // closed once enoughWrites writes have been acknowledged
	written []string
	longest time.Duration // longest gap between acknowledged writes
	failed  []string      // times and errors of failed writes
}

const enoughWrites = 20

// writers counts the writers. Each writer uses its number in its keys, so that no two of them write the same key.
var writers atomic.Int32

func (w *environment) startWriter() *writer {
	ctx, stop := context.WithCancel(context.Background())
	writes := &writer{stop: stop, ended: make(chan struct{}), enough: make(chan struct{})}
	client, number := w.etcd(), writers.Add(1)
	go func() {
		defer close(writes.ended)
		last := time.Now()
		for i := 0; ctx.Err() == nil; i++ {
			key := fmt.Sprintf("written/%d/%06d", number, i)
			began := time.Now()
			if err := tryPut(client, key, key, 5*time.Second); err != nil {
				writes.failed = append(writes.failed, fmt.Sprintf("%s, after %s: %v", began.UTC().Format("15:04:05.000"), time.Since(began).Round(time.Millisecond), err))
				continue
			}
			writes.written = append(writes.written, key)
			if len(writes.written) == enoughWrites {
				close(writes.enough)
			}
			writes.longest, last = max(writes.longest, time.Since(last)), time.Now()
		}
	}()
	w.t.Cleanup(func() { stop(); <-writes.ended })
	return writes
}

// allIn requires that keys contains the keys of all acknowledged writes.
func (w *writer) allIn(t *testing.T, keys map[string]bool) {
	t.Helper()
	require.NotEmpty(t, w.written)
	for _, key := range w.written {
		require.True(t, keys[key], "%s was acknowledged but is lost", key)
	}
}

// check stops the writer and requires that all acknowledged writes are in the cluster.
func (w *environment) check(writes *writer) {
	w.t.Helper()
	select {
	case <-writes.enough:
	case <-time.After(cluster.Patience):
		w.t.Errorf("fewer than %d writes were acknowledged within %s", enoughWrites, cluster.Patience)
	}
	writes.stop()
	<-writes.ended
	keys := map[string]bool{}
	for _, kv := range w.get("written/", clientv3.WithPrefix(), clientv3.WithKeysOnly()).Kvs {
		keys[string(kv.Key)] = true
	}
	writes.allIn(w.t, keys)
	w.t.Logf("%d writes failed:\n%s", len(writes.failed), strings.Join(writes.failed[:min(len(writes.failed), 10)], "\n"))
	w.t.Logf("%d writes were acknowledged, and none was lost; the longest gap between two was %s", len(writes.written), writes.longest.Round(time.Millisecond))
}

// lastWritten returns options for reading only the most recently written key.
func lastWritten() []clientv3.OpOption {
	return append(clientv3.WithLastRev(), clientv3.WithPrefix())
}
