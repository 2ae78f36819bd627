package capture

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
)

func TestWhatCompactionHasLeftOfARevisionIsReadAndToldAsSuch(t *testing.T) {
	reader, etcd := reader(t)
	replaced := put(t, etcd, "a", "1")
	last := put(t, etcd, "a", "2")
	for _, revision := range []int64{replaced, last} {
		rows, whole, err := reader.Left(revision)
		require.NoError(t, err)
		assert.True(t, whole)
		assert.Len(t, rows, 1)
	}
	_, err := etcd.Client.Compact(t.Context(), last, clientv3.WithCompactPhysical())
	require.NoError(t, err)
	for revision, left := range map[int64]int{replaced: 0, last: 1} {
		rows, whole, err := reader.Left(revision)
		require.NoError(t, err)
		assert.False(t, whole)
		assert.Len(t, rows, left)
	}
}
