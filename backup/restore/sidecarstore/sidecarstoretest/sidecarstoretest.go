// Package sidecarstoretest helps tests write backups in the format of etcd-backup-restore.
package sidecarstoretest

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
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Suffixes contains the suffixes for the sidecar's compression algorithms.
var Suffixes = []string{"", ".gz", ".zlib", ".Z"}

// Event is an event in the sidecar's JSON format, using the type from the sidecar's etcd client.
type Event struct {
	EtcdEvent *clientv3.Event `json:"etcdEvent"`
	Time      time.Time       `json:"time"`
}

// Name returns the sidecar's name for an object, without a directory.
func Name(kind string, first, last int64, created time.Time, suffix string) string {
	return fmt.Sprintf("%s-%08d-%08d-%d%s", kind, first, last, created.Unix(), suffix)
}

// Delta returns the uncompressed content of an Incr object.
func Delta(t testing.TB, events ...Event) []byte {
	t.Helper()
	content, err := json.Marshal(events)
	require.NoError(t, err)
	return WithDigest(content)
}

// WithDigest returns the content followed by its SHA-256.
func WithDigest(content []byte) []byte {
	sum := sha256.Sum256(content)
	return append(content[:len(content):len(content)], sum[:]...)
}

// Compress compresses content with the algorithm of the suffix.
func Compress(t testing.TB, suffix string, content []byte) []byte {
	t.Helper()
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

// UpTo returns the events of a watch up to a revision, as the sidecar receives them.
func UpTo(t testing.TB, watch clientv3.WatchChan, last int64) (events []Event) {
	t.Helper()
	for answer := range watch {
		require.NoError(t, answer.Err())
		for _, event := range answer.Events {
			events = append(events, Event{EtcdEvent: event, Time: time.Now()})
		}
		if len(events) > 0 && events[len(events)-1].EtcdEvent.Kv.ModRevision >= last {
			return events
		}
	}
	require.FailNow(t, "the watch has ended")
	return nil
}
