package writer

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/server/v3/storage/backend"
)

// slow is an etcd whose database cannot be read for a while, as where the machine is busy.
type slow struct {
	Etcd
	mu sync.Mutex // held meanwhile
}

func (e *slow) Backend() backend.Backend {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.Etcd.Backend()
}

func TestACompactionWaitsForACaptureThatTakesItsTimeSoNoGapIsLeft(t *testing.T) {
	s := newStand(t)
	busy := &slow{Etcd: s.options.Etcd}
	s.options.Etcd = busy
	s.run()
	s.awaitStored(s.put("a", "1"))
	busy.mu.Lock()
	s.put("a", "2")
	last := s.put("a", "3")
	captured := make(chan struct{})
	go func() {
		defer close(captured)
		s.BeforeCompaction(t.Context())
	}()
	assert.Never(t, func() bool { return isClosed(captured) }, 300*time.Millisecond, poll, "nothing is captured yet")
	busy.mu.Unlock()
	require.Eventually(t, func() bool { return isClosed(captured) }, patience, poll)
	s.compact(last)
	s.awaitStored(s.put("a", "4"))
	require.NoError(t, s.Flush(t.Context()))
	s.requireChains(1)
}

func isClosed(done chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}
