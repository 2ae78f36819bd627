package maintenance

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestGate_readers(t *testing.T) {
	var g Gate
	endFirst, err := g.Acquire(t.Context(), "the snapshot for 10.0.0.7:4031")
	require.NoError(t, err)
	endSecond, err := g.Acquire(t.Context(), "the backup")
	require.NoError(t, err, "readers do not keep each other out")

	_, err = g.Close("a defragmentation")
	require.Error(t, err)
	require.Regexp(t, `^the database is being read: wait for the snapshot for 10\.0\.0\.7:4031 \(since .+Z\) and the backup \(since .+Z\) to finish$`, err.Error())

	endFirst()
	endFirst()
	require.Len(t, g.Inside(), 1, "to end twice is to end once")
	endSecond()
	open, err := g.Close("a defragmentation")
	require.NoError(t, err)
	_, err = g.Close("another one")
	require.EqualError(t, err, "a defragmentation is in progress; wait for it to finish")
	open()
	open()
	_, err = g.Close("another one")
	require.NoError(t, err)
}

func TestGate_waitingReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Gate
		open, err := g.Close("the defragmentation")
		require.NoError(t, err)
		start := time.Now()
		time.AfterFunc(time.Minute, open)
		end, err := g.Acquire(t.Context(), "the backup")
		require.NoError(t, err)
		assert.Equal(t, time.Minute, time.Since(start))
		end()
	})
}

func TestGate_canceledReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Gate
		open, err := g.Close("the defragmentation of etcd-main-0")
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = g.Acquire(ctx, "the backup")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "the backup gave up waiting for the defragmentation of etcd-main-0")
		open()
		require.Empty(t, g.Inside())
	})
}
