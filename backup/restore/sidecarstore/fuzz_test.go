package sidecarstore_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"etcd-wrapper/backup/restore/sidecarstore"
	"etcd-wrapper/backup/restore/sidecarstore/sidecarstoretest"
)

// FuzzDelta looks for content over which the reader panics, or that it takes for rows that no etcd has.
func FuzzDelta(f *testing.F) {
	for i, suffix := range sidecarstoretest.Suffixes {
		plain := sidecarstoretest.Delta(f, append(puts(11, 13), put(13, "more", "value"))...)
		f.Add(sidecarstoretest.Compress(f, suffix, plain), uint8(i))
		f.Add(plain[:len(plain)-32], uint8(4+i))
	}
	f.Add([]byte(`[{"etcdEvent":{"type":1,"kv":{"key":"Zm9v","mod_revision":11}},"time":"2020-11-23T13:43:07Z"}]`), uint8(4))
	f.Fuzz(func(t *testing.T, content []byte, how uint8) {
		suffix := sidecarstoretest.Suffixes[how%4]
		if how%8 >= 4 { // as a sidecar would have written it
			content = sidecarstoretest.Compress(t, suffix, sidecarstoretest.Sealed(content))
		}
		rows, err := readDelta(t, suffix, content)
		if err != nil {
			require.True(t, errors.Is(err, sidecarstore.ErrDamaged) || errors.Is(err, sidecarstore.ErrNotKept), err)
			return
		}
		for i, row := range rows {
			require.Equal(t, len(row.Key) == 18, len(row.Key) != 17 && row.Key[17] == 't')
			require.True(t, i == 0 || bytes.Compare(rows[i-1].Key, row.Key) < 0, "rows are in sequence")
			var kv mvccpb.KeyValue
			require.NoError(t, kv.Unmarshal(row.Value))
			require.NotEmpty(t, kv.Key)
			require.True(t, len(row.Key) == 18 || kv.ModRevision == revisionsOf(rows[i : i+1])[0])
		}
	})
}
