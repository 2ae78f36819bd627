package writer

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
)

func TestEveryAcknowledgedWriteIsInTheStoreSoonAndCanBeReadBack(t *testing.T) {
	s := newStand(t)
	s.put("before", "the first full")
	s.run()
	s.eventually(func(f Facts) bool { return f.LastFull != nil }, "a full is made")
	for i := range 100 {
		s.put(fmt.Sprint("key", i%10), fmt.Sprint(i))
	}
	last := s.put("last", "1")
	s.awaitStored(last)

	path := s.requireAllKept()
	assert.Equal(t, last, path.Revision)
	assert.Equal(t, "there was no full yet", path.Full.Reason)
	require.NotNil(t, path.Full.Hash, "a small database's is asked for")
	s.requireChains(1)
	facts := s.Facts()
	assert.Equal(t, Writing, facts.Role)
	assert.True(t, facts.CreateIfAbsent)
	assert.Equal(t, 1, facts.Generation)
	assert.Nil(t, facts.Trouble)
	s.closesTransactions()
}

func TestNothingIsWrittenWhileNothingChanges(t *testing.T) {
	s := newStand(t).run()
	s.awaitStored(s.put("a", "1"))
	require.NoError(t, s.Flush(t.Context()))
	assert.Zero(t, s.Facts().SpoolBytes)
	assert.Zero(t, s.Facts().Behind)
	assert.Less(t, s.Facts().BehindFor, time.Second, "etcd's own bookkeeping may just have changed")
	before := s.Facts().Segments
	_, err := s.etcd.Client.Get(t.Context(), "a")
	require.NoError(t, err)
	require.NoError(t, s.Flush(t.Context()), "which captures what there is")
	assert.Equal(t, before, s.Facts().Segments)
}

func TestChangesOfLeasesAndUsersAreKeptThoughNoRevisionMoves(t *testing.T) {
	s := begun(t) // a full that already has them would leave nothing to segments
	lease, err := s.etcd.Client.Grant(t.Context(), 3600)
	require.NoError(t, err)
	_, err = s.etcd.Client.UserAdd(t.Context(), "someone", "secret")
	require.NoError(t, err)
	require.NoError(t, s.Flush(t.Context()))
	_, reading, _ := kept(t, s.store, archive.Target{})
	found := map[string]int{}
	for _, bucket := range reading.Buckets {
		found[bucket.Name] = bucket.Len()
	}
	assert.Equal(t, 1, found["lease"], "lease %x", lease.ID)
	assert.Equal(t, 1, found["authUsers"])
}

// late is an etcd that has answered its clients and not yet said that it has applied what they asked for.
type late struct {
	Etcd
	frozen atomic.Uint64 // 0 lets go
}

func (l *late) AppliedIndex() uint64 {
	if frozen := l.frozen.Load(); frozen != 0 {
		return frozen
	}
	return l.Etcd.AppliedIndex()
}

func TestAFlushBringsWhatEtcdHasAnsweredThoughItHasNotCountedItYet(t *testing.T) {
	s := newStand(t)
	etcd := &late{Etcd: s.options.Etcd}
	s.options.Etcd = etcd
	s.run()
	s.awaitStored(s.put("first", "value"))
	require.NoError(t, s.Flush(t.Context()))
	etcd.frozen.Store(etcd.AppliedIndex())
	require.NoError(t, s.Flush(t.Context()), "which captures all that this index stands for")
	_, err := s.etcd.Client.UserAdd(t.Context(), "someone", "secret")
	require.NoError(t, err)
	require.NoError(t, s.Flush(t.Context()))
	_, reading, _ := kept(t, s.store, archive.Target{})
	holds := func(b *format.Bucket) bool { return b.Name == "authUsers" && b.Len() == 1 }
	assert.True(t, slices.ContainsFunc(reading.Buckets, holds))
}

func TestAFlushBringsEverythingIntoTheStoreAtOnce(t *testing.T) {
	s := newStand(t)
	s.options.Interval = patience * 100
	s.run()
	for i := range 5 {
		last := s.put("a", fmt.Sprint(i))
		require.NoError(t, s.Flush(t.Context()))
		assert.GreaterOrEqual(t, s.Facts().Stored, last)
		s.requireAllKept()
	}
}
