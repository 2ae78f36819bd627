package faults_test

import (
	"crypto/rand"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"etcd-wrapper/cmd/suites/harness"
)

// clientOfAll returns a client that knows the endpoints of all members, like that of a Kubernetes API server.
func clientOfAll(t *testing.T, pods []*harness.Pod) *clientv3.Client {
	t.Helper()
	return harness.NewClient(t, clientv3.Config{Endpoints: endpointsOf(pods)})
}

func endpointsOf(pods []*harness.Pod) (endpoints []string) {
	for _, p := range pods {
		endpoints = append(endpoints, p.Endpoint())
	}
	return endpoints
}

// large returns a random 40 KiB value, which cannot be compressed.
func large() string {
	value := make([]byte, 40<<10)
	_, _ = rand.Read(value) // never fails
	return string(value)
}

// grow writes the given number of MiB under the given prefix.
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

// deleteValues deletes the values that grow has written under a prefix, in batches of 100, and compacts. This leaves
// free pages in the database.
func deleteValues(t *testing.T, c *clientv3.Client, prefix string) {
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

// requireNothingLost requires that no acknowledged write has been lost.
func requireNothingLost(t *testing.T, c *clientv3.Client, writers []*harness.LatencyClient) {
	t.Helper()
	for _, w := range writers {
		reply, err := c.Get(t.Context(), w.Prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
		require.NoError(t, err)
		require.GreaterOrEqual(t, reply.Count, int64(w.Acked), "number of keys with the prefix %s", w.Prefix)
	}
}
