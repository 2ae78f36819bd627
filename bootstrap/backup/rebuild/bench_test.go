package rebuild

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/server/v3/storage/schema"

	"etcd-wrapper/bootstrap/backup/segment"
)

// mebibytes is larger for figures: go test ./bootstrap/backup/rebuild -run XXX -bench . -benchtime 1x -mebibytes 2048.
var mebibytes = flag.Int64("mebibytes", 64, "how large the full is that is rebuilt in benchmarks")

// BenchmarkRebuild writes a full with rows of 1 KB, and inserts half as many of 300 bytes.
func BenchmarkRebuild(b *testing.B) {
	rows := *mebibytes << 10
	path := filepath.Join(b.TempDir(), "full")
	makeFull(b, path, rows)
	info, err := os.Stat(path)
	require.NoError(b, err)
	for b.Loop() {
		began, received := time.Now(), time.Time{}
		source := Source{Snapshot: func(context.Context) (io.ReadCloser, error) { return os.Open(path) }, DatabaseBytes: info.Size()}
		source.Rows = func(_ context.Context, row func(segment.Row) error) (Changes, error) {
			received = time.Now()
			return Changes{}, synthetic(rows+1, rows+rows/2, 200, row)
		}
		_, err := Database(b.Context(), source, path+"-rebuilt", Options{})
		require.NoError(b, err)
		b.ReportMetric(float64(info.Size())/1e6/received.Sub(began).Seconds(), "MB/s")
		b.ReportMetric(float64(rows/2)/time.Since(received).Seconds(), "rows/s")
		b.ReportMetric(anonymous(b), "RssAnon-MiB")
		require.NoError(b, os.Remove(path+"-rebuilt"))
	}
}

// anonymous is the memory of this process that is not files.
func anonymous(b *testing.B) float64 {
	status, err := os.ReadFile("/proc/self/status")
	require.NoError(b, err)
	var kib float64
	_, rest, _ := strings.Cut(string(status), "RssAnon:")
	_, err = fmt.Sscan(rest, &kib)
	require.NoError(b, err)
	return kib / 1024
}

// synthetic are rows from one revision to another, of half as many keys.
func synthetic(from, to int64, size int, row func(segment.Row) error) error {
	value := make([]byte, size)
	random := rand.NewChaCha8([32]byte{})
	for at := from; at <= to; at++ {
		_, _ = random.Read(value[:size/4]) // the rest compresses well
		binary.BigEndian.PutUint64(value, uint64(at))
		kv := mvccpb.KeyValue{Key: fmt.Appendf(nil, "/registry/pods/default/%08d", at%(to/2)), Value: value, ModRevision: at, CreateRevision: at, Version: 1}
		marshalled, err := kv.Marshal()
		if err == nil {
			err = row(segment.Row{Key: revisionKey(at), Value: marshalled})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// makeFull makes a stock snapshot with rows up to a revision.
func makeFull(b testing.TB, path string, rows int64) {
	empty := path + "-empty"
	db, err := bolt.Open(empty, 0o600, &bolt.Options{NoSync: true, NoFreelistSync: true})
	require.NoError(b, err)
	require.NoError(b, db.Update(func(tx *bolt.Tx) error {
		for _, bucket := range schema.AllBuckets {
			if _, err := tx.CreateBucket(bucket.Name()); err != nil {
				return err
			}
		}
		return nil
	}))
	require.NoError(b, db.Close())
	content, err := os.ReadFile(empty)
	require.NoError(b, err)
	sum := sha256.Sum256(content)
	source := snapshotOf(append(bytes.Clone(content), sum[:]...))
	source.Rows = func(_ context.Context, row func(segment.Row) error) (Changes, error) {
		return Changes{}, synthetic(2, rows, 900, row)
	}
	_, err = Export(b.Context(), source, path, Options{})
	require.NoError(b, err)
}
