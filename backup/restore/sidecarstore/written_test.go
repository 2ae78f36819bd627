package sidecarstore_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/restore/sidecarstore"
	"etcd-wrapper/backup/restore/sidecarstore/sidecarstoretest"
	"etcd-wrapper/backup/store/memory"
)

// noon is the time at which the sidecars' clocks start in the tests.
var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// put returns the event of a put.
func put(revision int64, key, value string) sidecarstoretest.Event {
	return sidecarstoretest.Event{
		Time: noon.Add(time.Duration(revision) * time.Second),
		EtcdEvent: &clientv3.Event{Kv: &mvccpb.KeyValue{
			Key: []byte(key), Value: []byte(value), CreateRevision: revision, ModRevision: revision, Version: 1,
		}},
	}
}

// puts returns one event for each revision from first to last.
func puts(first, last int64) (events []sidecarstoretest.Event) {
	for revision := first; revision <= last; revision++ {
		events = append(events, put(revision, fmt.Sprintf("key-%d", revision), "value"))
	}
	return events
}

// keep stores full snapshots and deltas, with the content that their names imply, and returns the archive.
func keep(t testing.TB, s *memory.Store, names ...string) *sidecarstore.Archive {
	for _, name := range names {
		var first, last int64
		if _, err := fmt.Sscanf(name, "v2/Incr-%d-%d-", &first, &last); err == nil {
			s.SetContent(name, sidecarstoretest.Delta(t, puts(first, last)...))
		} else {
			s.SetContent(name, sidecarstoretest.WithDigest([]byte("the database "+name)))
		}
	}
	return list(t, s)
}

func list(t testing.TB, s *memory.Store) *sidecarstore.Archive {
	kept, err := sidecarstore.List(t.Context(), s)
	require.NoError(t, err)
	return kept
}

// collectRows collects the rows from the newest suitable full snapshot to the target.
func collectRows(t testing.TB, kept *sidecarstore.Archive, base int64, to archive.Target) (rows []format.Row, err error) {
	fulls, err := kept.FullSnapshots(to)
	require.NoError(t, err)
	return collect(t, kept, fulls[0], sidecarstore.Base{Revision: base}, to)
}

func collect(t testing.TB, kept *sidecarstore.Archive, full sidecarstore.Object, base sidecarstore.Base, to archive.Target) (
	rows []format.Row, err error,
) {
	for row, err := range kept.Rows(t.Context(), full, base, to) {
		if err != nil {
			return rows, err
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// keysOf returns the keys of the rows in readable form.
func keysOf(t testing.TB, rows []format.Row) (keys []string) {
	for _, row := range rows {
		var kv mvccpb.KeyValue
		require.NoError(t, kv.Unmarshal(row.Value))
		keys = append(keys, string(kv.Key))
	}
	return keys
}
