package seed

import (
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"

	"etcd-wrapper/backup/restore"
	"etcd-wrapper/backup/restore/restoretest"
	"etcd-wrapper/bootstrap/datadir/datadirtest"
)

// mebibytes is larger for figures: go test ./recovery/seed -run XXX -bench . -benchtime 1x -mebibytes 2048.
var mebibytes = flag.Int64("mebibytes", 64, "how large the database is that is restored in benchmarks")

// BenchmarkRestore compares a restore, and etcd's start on it, with what it cannot do without, and with etcdutl.
func BenchmarkRestore(b *testing.B) {
	full := filepath.Join(b.TempDir(), "full")
	source := restoretest.Full(b, full, *mebibytes<<10, 900)
	for b.Loop() {
		write := timed(b, func(dir string) { restoretest.Copy(b, full, filepath.Join(dir, "copy")) })
		build, start, total := restored(b, func(dir string) {
			_, err := alone(dir).Build(b.Context(), source, restore.Options{Above: 10_000_000})
			require.NoError(b, err)
		})
		theirs, theirStart, _ := restored(b, func(dir string) {
			require.NoError(b, snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
				SnapshotPath: full, Name: "default", OutputDataDir: dir, RevisionBump: 10_000_000, MarkCompacted: true,
				PeerURLs: []string{"http://127.0.0.1:1"}, InitialCluster: "default=http://127.0.0.1:1", InitialClusterToken: "token",
			}))
		})
		b.ReportMetric(write, "s/write")
		b.ReportMetric(build, "s/build")
		b.ReportMetric(start, "s/start")
		b.ReportMetric(theirs, "s/etcdutl")
		b.ReportMetric(theirStart, "s/start-on-etcdutl's")
		b.ReportMetric(total/(write+theirStart), "x-of-the-floor")
	}
}

// restored makes a data directory and starts etcd on it.
func restored(b *testing.B, restore func(dir string)) (build, start, total float64) {
	timed(b, func(root string) {
		dir := filepath.Join(root, "new.etcd")
		began := time.Now()
		restore(dir)
		build = time.Since(began).Seconds()
		server, err := datadirtest.Start(dir)
		start = time.Since(began).Seconds() - build
		require.NoError(b, err)
		b.StopTimer()
		server.Close()
		b.StartTimer()
	})
	return build, start, build + start
}

func timed(b *testing.B, work func(dir string)) float64 {
	dir, err := os.MkdirTemp(b.TempDir(), "")
	require.NoError(b, err)
	defer os.RemoveAll(dir)
	began := time.Now()
	work(dir)
	return time.Since(began).Seconds()
}
