package backups_test

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/harness"
)

// Clients must be able to write while a client reads a snapshot slowly and defragmentations and full snapshots are
// requested, even though a defragmentation has to wait until the snapshot is closed.
func TestFullSnapshot_duringDefragmentation(t *testing.T) {
	t.Parallel()
	m := newMember(t)
	run := m.StartReady()
	for i := range 30 {
		m.write(fmt.Sprint("large ", i), strings.Repeat("v", 1<<20))
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	snapshot, err := m.Etcd().Snapshot(ctx) // stays open, as for a slow client
	require.NoError(t, err)
	_, err = snapshot.Read(make([]byte, 1))
	require.NoError(t, err)

	var requests sync.WaitGroup
	for range 3 {
		requests.Go(func() { _, _ = m.Etcd().Defragment(ctx, m.Endpoint()) }) // the request may be rejected
		requests.Go(func() { m.Begin("backup", "now").Wait() })
		require.NoError(t, m.TryPut("key", "meanwhile", harness.Patience), "etcd acknowledges writes")
	}
	_, err = io.Copy(io.Discard, snapshot)
	require.NoError(t, err)
	require.NoError(t, snapshot.Close())
	requests.Wait()
	require.NoError(t, m.TryPut("key", "afterwards", harness.Patience))
	_, err = m.Etcd().Defragment(t.Context(), m.Endpoint())
	require.NoError(t, err, "no snapshot blocks the defragmentation")
	run.Shutdown()
	assert.Equal(t, "afterwards", m.keys(t, targetLatest)["key"])
}
