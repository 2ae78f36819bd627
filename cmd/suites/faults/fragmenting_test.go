package faults_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"etcd-wrapper/cmd/suites/harness"
)

// clientOfAll knows all members, as an API server does.
func clientOfAll(t *testing.T, pods []*harness.Pod) *clientv3.Client {
	t.Helper()
	return clientOf(t, endpointsOf(pods))
}

func endpointsOf(pods []*harness.Pod) (endpoints []string) {
	for _, p := range pods {
		endpoints = append(endpoints, p.Endpoint())
	}
	return endpoints
}

func clientOf(t *testing.T, endpoints []string) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: endpoints, DialTimeout: harness.Patience, Logger: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// large is a value of 40 KiB that nothing can make smaller.
func large() string {
	value := make([]byte, 40<<10)
	_, _ = rand.Read(value) // it never fails
	return string(value)
}

// grow writes so many mebibytes of values below a prefix.
func grow(t *testing.T, c *clientv3.Client, prefix string, mebibytes int) {
	t.Helper()
	keys := make(chan int)
	var writers sync.WaitGroup
	for range 16 {
		writers.Go(func() {
			for i := range keys {
				_, err := c.Put(t.Context(), fmt.Sprintf("%s%06d", prefix, i), large())
				if err != nil {
					t.Errorf("cannot fill the database: %v", err)
				}
			}
		})
	}
	for i := range mebibytes * 1024 / 40 {
		keys <- i
	}
	close(keys)
	writers.Wait()
}

// thin takes the values below a prefix away, a hundred at a time, and compacts, which leaves room in the file.
func thin(t *testing.T, c *clientv3.Client, prefix string) {
	t.Helper()
	var reply *clientv3.DeleteResponse
	var err error
	for hundred := 0; reply == nil || reply.Deleted > 0; hundred++ {
		reply, err = c.Delete(t.Context(), fmt.Sprintf("%s%04d", prefix, hundred), clientv3.WithPrefix())
		require.NoError(t, err)
	}
	_, err = c.Compact(t.Context(), reply.Header.Revision, clientv3.WithCompactPhysical())
	require.NoError(t, err)
}

// gapWriter puts one key after the other, reads it back, and knows how long it had to wait.
type gapWriter struct {
	client *clientv3.Client
	prefix string
	acked  int
	gap    time.Duration // the longest between two acknowledged writes
	at     time.Time     // when that ended
	failed []error
}

// run writes until ctx ends. What fails is tried again: its outcome is unknown, so the next write may find it done.
func (w *gapWriter) run(ctx context.Context) {
	last := time.Now()
	for ctx.Err() == nil {
		_, err := w.client.Put(ctx, fmt.Sprintf("%s%06d", w.prefix, w.acked), fmt.Sprint(w.acked))
		if err != nil {
			if ctx.Err() == nil {
				w.failed = append(w.failed, fmt.Errorf("at %s: %w", time.Now().UTC().Format(time.StampMilli), err))
			}
			continue
		}
		w.acked++
		if gap := time.Since(last); gap > w.gap {
			w.gap, w.at = gap, time.Now()
		}
		last = time.Now()
	}
}

// startWriters starts writers and returns what ends them.
func startWriters(t *testing.T, endpoints []string, count int) (end func() []*gapWriter) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var all []*gapWriter
	var working sync.WaitGroup
	for i := range count {
		w := &gapWriter{client: clientOf(t, endpoints), prefix: fmt.Sprintf("/registry/writer-%d/", i)}
		all = append(all, w)
		working.Go(func() { w.run(ctx) })
	}
	return func() []*gapWriter {
		cancel()
		working.Wait()
		return all
	}
}

// nothingIsLost says that every write that was acknowledged is there.
func nothingIsLost(t *testing.T, c *clientv3.Client, writers []*gapWriter) {
	t.Helper()
	for _, w := range writers {
		reply, err := c.Get(t.Context(), w.prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
		require.NoError(t, err)
		require.GreaterOrEqual(t, reply.Count, int64(w.acked), "of the writes below %s", w.prefix)
	}
}
