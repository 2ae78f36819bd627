package sidecarstore_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"etcd-wrapper/backup/restore/sidecarstore"
	"etcd-wrapper/backup/restore/sidecarstore/sidecarstoretest"
	"etcd-wrapper/backup/store/memory"
)

// noon is where the clocks of the sidecars in the tests begin.
var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// put is an event of a key that is stored.
func put(revision int64, key, value string) sidecarstoretest.Event {
	return sidecarstoretest.Event{
		Time: noon.Add(time.Duration(revision) * time.Second),
		EtcdEvent: &clientv3.Event{Kv: &mvccpb.KeyValue{
			Key: []byte(key), Value: []byte(value), CreateRevision: revision, ModRevision: revision, Version: 1,
		}},
	}
}

// puts are events of the revisions from first to last, one each.
func puts(first, last int64) (events []sidecarstoretest.Event) {
	for revision := first; revision <= last; revision++ {
		events = append(events, put(revision, fmt.Sprintf("key-%d", revision), "value"))
	}
	return events
}

// keep stores a full and deltas whose contents are told by their names, and returns the archive.
func keep(t testing.TB, s *memory.Store, names ...string) *sidecarstore.Archive {
	for _, name := range names {
		var first, last int64
		if _, err := fmt.Sscanf(name, "v2/Incr-%d-%d-", &first, &last); err == nil {
			s.SetContent(name, sidecarstoretest.Delta(t, puts(first, last)...))
		} else {
			s.SetContent(name, sidecarstoretest.Sealed([]byte("the database "+name)))
		}
	}
	return list(t, s)
}

func list(t testing.TB, s *memory.Store) *sidecarstore.Archive {
	archive, err := sidecarstore.List(t.Context(), s)
	require.NoError(t, err)
	return archive
}

// replay collects the rows that lead from the newest full that suits to the target.
func replay(t testing.TB, archive *sidecarstore.Archive, base int64, to sidecarstore.Target) (rows []sidecarstore.Row, err error) {
	fulls, err := archive.Fulls(to)
	require.NoError(t, err)
	return collect(t, archive, fulls[0], sidecarstore.Base{Revision: base}, to)
}

func collect(t testing.TB, archive *sidecarstore.Archive, full sidecarstore.Object, base sidecarstore.Base, to sidecarstore.Target) (
	rows []sidecarstore.Row, err error,
) {
	for row, err := range archive.Rows(t.Context(), full, base, to) {
		if err != nil {
			return rows, err
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// keysOf are the rows' keys, for people.
func keysOf(t testing.TB, rows []sidecarstore.Row) (keys []string) {
	for _, row := range rows {
		var kv mvccpb.KeyValue
		require.NoError(t, kv.Unmarshal(row.Value))
		keys = append(keys, string(kv.Key))
	}
	return keys
}
