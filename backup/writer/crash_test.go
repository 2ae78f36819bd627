package writer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
)

// mortal is a store whose user dies at one of its calls: what was asked for happens or not, and nothing is heard of it.
type mortal struct {
	store.Store
	calls   atomic.Int32
	last    int32 // the call that it dies at
	happens bool  // whether that one is done all the same
}

var errDead = errors.New("dead")

func (m *mortal) dies() (dead, happens bool) {
	call := m.calls.Add(1)
	return call >= m.last, call == m.last && m.happens
}

func (m *mortal) Put(ctx context.Context, name string, content io.Reader) error {
	dead, happens := m.dies()
	if !dead || happens {
		if err := m.Store.Put(context.WithoutCancel(ctx), name, content); err != nil {
			return err
		}
	}
	if dead {
		<-ctx.Done()
		return errDead
	}
	return nil
}

func (m *mortal) Get(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error) {
	if dead, _ := m.dies(); dead {
		<-ctx.Done()
		return nil, errDead
	}
	return m.Store.Get(ctx, name, offset, length)
}

func (m *mortal) List(ctx context.Context, prefix, after string) iter.Seq2[store.Object, error] {
	if dead, _ := m.dies(); dead {
		<-ctx.Done()
		return store.Failed(errDead)
	}
	return m.Store.List(ctx, prefix, after)
}

func (m *mortal) Delete(ctx context.Context, name string) error {
	dead, happens := m.dies()
	if !dead || happens {
		if err := m.Store.Delete(context.WithoutCancel(ctx), name); err != nil {
			return err
		}
	}
	if dead {
		<-ctx.Done()
		return errDead
	}
	return nil
}

func TestNothingIsLostWhereverItDiesAndTheChainGoesOn(t *testing.T) {
	s := newStand(t)
	s.options.Interval = 20 * time.Millisecond
	for _, happens := range []bool{false, true} {
		for last := int32(1); ; last++ {
			if s.died(last, happens) < last {
				break
			}
		}
	}
}

// died runs it on an empty store until the call, then on a good one, and returns how many calls the first run made.
func (s *stand) died(last int32, happens bool) int32 {
	s.Helper()
	dying := &mortal{Store: memory.New(), last: last, happens: happens}
	s.store = dying.Store.(*memory.Store)
	opened := s.options.Open
	defer func() { s.options.Open = opened }()
	s.options.SpoolDir = filepath.Join(s.TempDir(), "spool")
	s.options.Open = func(context.Context) (*archive.Archive, error) { return archive.New(dying, keys), nil }
	s.run()
	var confirmed int64
	for i := range 4 {
		written := s.put("a", fmt.Sprint(last, i))
		s.eventually(func(f Facts) bool { return f.Stored >= written || dying.calls.Load() >= last }, "it dies or goes on")
		confirmed = max(confirmed, s.Facts().Stored)
	}
	calls := dying.calls.Load()
	s.end()
	found, err := archive.New(s.store, keys).Find(s.Context(), archive.Target{})
	if confirmed > 0 {
		require.NoError(s, err)
		assert.GreaterOrEqual(s, found.Revision, confirmed, "what was stored is there, call %d", last)
	}
	s.options.Open = opened
	s.run()
	written := s.put("a", "afterwards")
	require.NoError(s, s.Flush(s.Context()))
	s.end()
	assert.GreaterOrEqual(s, s.Facts().Stored, written)
	s.requireChains(1)
	s.requireAllKept()
	s.requireNothingLoose()
	return calls
}
