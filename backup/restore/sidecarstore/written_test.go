package sidecarstore_test

import (
	"bytes"
	"compress/gzip"
	"compress/lzw"
	"compress/zlib"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"etcd-wrapper/backup/restore/sidecarstore"
	"etcd-wrapper/backup/store/memory"
)

// suffixes are the sidecar's, of its four ways to compress.
var suffixes = []string{"", ".gz", ".zlib", ".Z"}

// noon is where the clocks of the sidecars in the tests begin.
var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// timed is what the sidecar writes of an event: its client's own type, and the time.
type timed struct {
	EtcdEvent *clientv3.Event `json:"etcdEvent"`
	Time      time.Time       `json:"time"`
}

// array is a delta before it is compressed.
func array(t testing.TB, events ...timed) []byte {
	content := []byte{}
	for i, event := range events {
		encoded, err := json.Marshal(event)
		require.NoError(t, err)
		content = append(append(content, "[,"[min(i, 1)]), encoded...)
	}
	return seal(append(content, ']'))
}

// seal puts the digest behind the content.
func seal(content []byte) []byte {
	sum := sha256.Sum256(content)
	return append(content[:len(content):len(content)], sum[:]...)
}

func compress(t testing.TB, suffix string, content []byte) []byte {
	var compressed bytes.Buffer
	var writer io.WriteCloser
	switch suffix {
	case "":
		return content
	case ".gz":
		writer = gzip.NewWriter(&compressed)
	case ".zlib":
		writer = zlib.NewWriter(&compressed)
	case ".Z":
		writer = lzw.NewWriter(&compressed, lzw.LSB, 8)
	}
	_, err := writer.Write(content)
	require.NoError(t, err)
	require.NoError(t, writer.Close())
	return compressed.Bytes()
}

// name is the sidecar's for an object, without a directory.
func name(kind string, first, last int64, created time.Time, suffix string) string {
	return fmt.Sprintf("%s-%08d-%08d-%d%s", kind, first, last, created.Unix(), suffix)
}

// put is an event of a key that is stored.
func put(revision int64, key, value string) timed {
	return timed{
		Time: noon.Add(time.Duration(revision) * time.Second),
		EtcdEvent: &clientv3.Event{Kv: &mvccpb.KeyValue{
			Key: []byte(key), Value: []byte(value), CreateRevision: revision, ModRevision: revision, Version: 1,
		}},
	}
}

// puts are events of the revisions from first to last, one each.
func puts(first, last int64) (events []timed) {
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
			s.SetContent(name, array(t, puts(first, last)...))
		} else {
			s.SetContent(name, seal([]byte("the database "+name)))
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
