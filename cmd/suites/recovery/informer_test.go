package recovery_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"etcd-wrapper/cmd/suites/harness"
)

// An informer lists and watches all keys and maintains a cache of them, like a Kubernetes controller. It records every
// revision that is lower than an earlier one.
type informer struct {
	t    *testing.T
	etcd *clientv3.Client

	mu       sync.Mutex
	cache    map[string]string
	revision int64    // revision up to which the cache is complete
	listings int      // number of times that the informer has listed all keys
	wrong    []string // descriptions of decreased revisions
}

// newInformer starts an informer that runs until the end of the test.
func newInformer(t *testing.T, etcd *clientv3.Client) *informer {
	i := &informer{t: t, etcd: etcd}
	ctx, stop := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for ctx.Err() == nil {
			if i.list(ctx) {
				i.watch(ctx)
			}
		}
	}()
	t.Cleanup(func() {
		stop()
		<-stopped
	})
	return i
}

// list replaces the cache with the result of listing all keys, and reports whether the request succeeded.
func (i *informer) list(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	reply, err := i.etcd.Get(ctx, "", clientv3.WithPrefix())
	if err != nil {
		select { // etcd is not ready yet: pause, so that the caller can retry
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
		return false
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if reply.Header.Revision < i.revision {
		i.wrong = append(i.wrong, fmt.Sprintf("a listing has revision %d, but revision %d was received before", reply.Header.Revision, i.revision))
	}
	i.cache, i.revision = map[string]string{}, reply.Header.Revision
	i.listings++
	for _, kv := range reply.Kvs {
		i.cache[string(kv.Key)] = string(kv.Value)
	}
	return true
}

// watch applies events to the cache. It returns once the next revision has been compacted, so that the informer has to
// list again. A watch that fails for another reason is resumed.
func (i *informer) watch(ctx context.Context) {
	for ctx.Err() == nil {
		watching, cancel := context.WithCancel(ctx)
		for response := range i.etcd.Watch(watching, "", clientv3.WithPrefix(), clientv3.WithRev(i.next())) {
			if errors.Is(response.Err(), rpctypes.ErrCompacted) {
				cancel()
				return
			}
			i.apply(response.Events)
		}
		cancel()
	}
}

func (i *informer) next() int64 {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.revision + 1
}

func (i *informer) apply(events []*clientv3.Event) {
	i.mu.Lock()
	defer i.mu.Unlock()
	before := i.revision
	for _, event := range events {
		if event.Kv.ModRevision <= before {
			i.wrong = append(i.wrong, fmt.Sprintf("an event for %s has revision %d, but revision %d was received before", event.Kv.Key, event.Kv.ModRevision, before))
		}
		i.revision = max(i.revision, event.Kv.ModRevision)
		if event.Type == clientv3.EventTypeDelete {
			delete(i.cache, string(event.Kv.Key))
		} else {
			i.cache[string(event.Kv.Key)] = string(event.Kv.Value)
		}
	}
}

// listed returns the number of times that the informer has listed all keys.
func (i *informer) listed() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.listings
}

// requireConsistent waits until the cache matches etcd's data, and requires that the revision has never decreased.
func (i *informer) requireConsistent() {
	i.t.Helper()
	harness.Eventually(i.t, "the informer's cache matches etcd's data", func() bool {
		ctx, cancel := context.WithTimeout(i.t.Context(), harness.Patience)
		defer cancel()
		reply, err := i.etcd.Get(ctx, "", clientv3.WithPrefix())
		if err != nil {
			return false
		}
		have := map[string]string{}
		for _, kv := range reply.Kvs {
			have[string(kv.Key)] = string(kv.Value)
		}
		i.mu.Lock()
		defer i.mu.Unlock()
		return maps.Equal(have, i.cache)
	})
	i.mu.Lock()
	defer i.mu.Unlock()
	require.Empty(i.t, i.wrong, "revisions never decrease")
}
