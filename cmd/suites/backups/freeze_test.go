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

// Writes must not block while a defragmentation is waiting for open snapshots to be closed.
func TestFullSnapshot_duringDefragmentation(t *testing.T) {
	t.Parallel()
	m := newMember(t)
	run := m.StartReady()
	for i := range 30 {
		m.write(fmt.Sprint("large ", i), strings.Repeat("v", 1<<20))
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	held, err := m.Etcd().Snapshot(ctx) // a slow client
	require.NoError(t, err)
	_, err = held.Read(make([]byte, 1))
	require.NoError(t, err)

	var asking sync.WaitGroup
	for range 3 {
		asking.Go(func() { _, _ = m.Etcd().Defragment(ctx, m.Endpoint()) }) // the request may be rejected
		asking.Go(func() { m.Begin("backup", "now").Wait() })
		require.NoError(t, m.TryPut("key", "meanwhile", harness.Patience), "etcd takes writes")
	}
	_, err = io.Copy(io.Discard, held)
	require.NoError(t, err)
	require.NoError(t, held.Close())
	asking.Wait()
	require.NoError(t, m.TryPut("key", "afterwards", harness.Patience))
	_, err = m.Etcd().Defragment(t.Context(), m.Endpoint())
	require.NoError(t, err, "the snapshot is closed")
	run.Shutdown()
	assert.Equal(t, "afterwards", m.keys(t, targetLatest)["key"])
}
