package verification

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/archivetest"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/restore/restoretest"
	"etcd-wrapper/backup/store/locate"
)

// mebibytes can be raised to measure: go test ./backup/restore/verification -run XXX -bench . -benchtime 1x
// -mebibytes 2048.
var mebibytes = flag.Int64("mebibytes", 64, "database size of benchmarks, in MiB")

// keepFull stores a full snapshot with rows of 1 KB and a wrong hash. It returns the size of the database in bytes.
func keepFull(t testing.TB, url string, rows int64) (a *archive.Archive, full archive.Full, bytes int64) {
	t.Helper()
	s, err := locate.Open(url)
	require.NoError(t, err)
	a, path := archive.New(s, &format.Keys{}), filepath.Join(t.TempDir(), "full")
	_, err = a.Create(t.Context(), archive.Cluster{Cluster: cluster, Created: time.Now()}, 1)
	require.NoError(t, err)
	source := restoretest.Full(t, path, rows, 900)
	require.NoError(t, os.Truncate(path, source.DatabaseBytes))
	database, err := os.Open(path)
	require.NoError(t, err)
	defer database.Close()
	full, err = archivetest.PutFull(t.Context(), a, archive.Full{
		Cluster: cluster, Generation: 1, Revision: rows, Time: time.Now(), Reason: "for a test", Chain: format.Seed(cluster, 1, rows),
		Hash: &format.Hash{Revision: rows, Compacted: rows / 2},
	}, database)
	require.NoError(t, err)
	return a, full, source.DatabaseBytes
}

// BenchmarkVerify verifies a full snapshot in a folder.
func BenchmarkVerify(b *testing.B) {
	a, full, size := keepFull(b, "file://"+b.TempDir(), *mebibytes<<10)
	defer debug.SetGCPercent(debug.SetGCPercent(gcPercent))
	debug.FreeOSMemory()
	highest := watchMemory(b)
	for b.Loop() {
		result, err := Verify(b.Context(), a, Job{1, full.Name(), full.Revision}, filepath.Join(b.TempDir(), "scratch"))
		require.NoError(b, err)
		require.Contains(b, result.Why, "and etcd's was 0") // the hash is compared last
	}
	b.ReportMetric(float64(size)*float64(b.N)/1e6/b.Elapsed().Seconds(), "MB/s")
	b.ReportMetric(highest(), "RssAnon-MiB")
}

// watchMemory starts to sample the memory of this process, files excluded. The returned function stops that and
// returns the highest sample.
func watchMemory(b *testing.B) (highest func() float64) {
	stop, told := make(chan struct{}), make(chan float64)
	go func() {
		var most float64
		for ticker := time.NewTicker(20 * time.Millisecond); ; {
			select {
			case <-stop:
				told <- most
				return
			case <-ticker.C:
				most = max(most, anonymous(b))
			}
		}
	}()
	return func() float64 { close(stop); return <-told }
}

// anonymous returns the memory of this process, files excluded, in MiB.
func anonymous(b *testing.B) (mebibytes float64) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Error(err)
	}
	_, rest, _ := strings.Cut(string(status), "RssAnon:")
	if _, err := fmt.Sscan(rest, &mebibytes); err != nil {
		b.Error(err)
	}
	return mebibytes / 1024
}
