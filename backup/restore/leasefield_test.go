package restore

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

func TestKeyAndLeaseAreReadAsEtcdReadsThem(t *testing.T) {
	for name, kv := range map[string]mvccpb.KeyValue{
		"nothing":          {},
		"a key":            {Key: []byte("a"), CreateRevision: 3, ModRevision: 5, Version: 2, Value: []byte("v")},
		"a lease":          {Key: []byte("a"), Value: []byte("v"), Lease: 1 << 40},
		"a negative lease": {Key: []byte{0, 255}, Lease: -1},
	} {
		t.Run(name, func(t *testing.T) {
			value, err := kv.Marshal()
			require.NoError(t, err)
			key, lease := keyAndLease(value)
			require.Equal(t, string(kv.Key), string(key))
			require.Equal(t, kv.Lease, lease)
		})
	}
}

func TestWhatCannotBeReadNamesNoLease(t *testing.T) {
	value, err := (&mvccpb.KeyValue{Key: []byte("a"), Value: []byte("v"), Lease: 77}).Marshal()
	require.NoError(t, err)
	for cut := range len(value) {
		_, lease := keyAndLease(value[:cut])
		require.Zero(t, lease)
	}
	_, lease := keyAndLease([]byte{0xff})
	require.Zero(t, lease)
}
