package restore_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/restore"
	"etcd-wrapper/backup/restore/restoretest"
	"etcd-wrapper/backup/store/locate"
)

// mebibytes can be raised for measurements: go test ./backup/restore -run XXX -bench . -benchtime 1x -mebibytes
// 2048.
var mebibytes = flag.Int64("mebibytes", 64, "database size of benchmarks, in MiB")

// BenchmarkRebuild writes a full snapshot with rows of 1 KB, and inserts half as many rows of 300 bytes.
func BenchmarkRebuild(b *testing.B) {
	rows := *mebibytes << 10
	path := filepath.Join(b.TempDir(), "full")
	source := restoretest.Full(b, path, rows, 900)
	for b.Loop() {
		start, received := time.Now(), time.Time{}
		source.Rows = func(_ context.Context, row func(format.Row) error) (archive.Reading, error) {
			received = time.Now()
			return archive.Reading{}, restoretest.Rows(rows+1, rows+rows/2, 200, row)
		}
		_, err := restore.Database(b.Context(), source, path+"-rebuilt", restore.Options{})
		require.NoError(b, err)
		b.ReportMetric(float64(source.DatabaseBytes)/1e6/received.Sub(start).Seconds(), "MB/s")
		b.ReportMetric(float64(rows/2)/time.Since(received).Seconds(), "rows/s")
		b.ReportMetric(anonymous(b), "RssAnon-MiB")
		require.NoError(b, os.Remove(path+"-rebuilt"))
	}
}

// BenchmarkSegments inserts rows of 300 bytes from segments in a folder, after a full snapshot of one row. Each
// segment has 1,000 rows, like one second of 1,000 writes.
func BenchmarkSegments(b *testing.B) {
	a, rows, rebuilt := newArchive(b), *mebibytes<<10, filepath.Join(b.TempDir(), "rebuilt")
	for b.Loop() {
		path, err := a.Find(b.Context(), archive.Target{})
		require.NoError(b, err)
		result, err := restore.Database(b.Context(), restore.NewSource(a, path), rebuilt, restore.Options{})
		require.NoError(b, err)
		require.Equal(b, rows-2, result.Rows)
		require.NoError(b, os.Remove(rebuilt))
	}
	b.ReportMetric(float64(rows)*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
}

// BenchmarkHash hashes rows of 1 KB, two for each key.
func BenchmarkHash(b *testing.B) {
	rows, path := *mebibytes<<10, filepath.Join(b.TempDir(), "full")
	restoretest.Full(b, path, rows, 900)
	b.ReportAllocs()
	for b.Loop() {
		_, err := restore.HashKV(b.Context(), path, restore.HashRequest{Compacted: rows * 3 / 4, Revision: rows})
		require.NoError(b, err)
	}
	b.ReportMetric(float64(rows)*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
}

// newArchive returns an archive with the rows in merged segments.
func newArchive(b *testing.B) *archive.Archive {
	s, err := locate.Open("file://" + b.TempDir())
	require.NoError(b, err)
	a := archive.New(s, &format.Keys{})
	start := restoretest.PutFull(b, a, "cdf818194e3a8c32", filepath.Join(b.TempDir(), "full"), 2, 200)
	restoretest.PutSegments(b, a, start, *mebibytes<<10, 1000, 200)
	return a
}

// anonymous returns the memory of this process in MiB, excluding mapped files.
func anonymous(b *testing.B) float64 {
	status, err := os.ReadFile("/proc/self/status")
	require.NoError(b, err)
	var kib float64
	_, rest, _ := strings.Cut(string(status), "RssAnon:")
	_, err = fmt.Sscan(rest, &kib)
	require.NoError(b, err)
	return kib / 1024
}
