//go:build bench

package bench_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/restore/restoretest"
	"etcd-wrapper/backup/store/folder"
	"etcd-wrapper/cmd/suites/harness"
)

const (
	restorePairs = 3
	restoreLimit = 5 * time.Minute
	hour         = 3600 // number of segments, each containing one second of writes
	aSecond      = 1000 // writes per segment
)

// restores compares the restore of a lost volume from a directory with its lower bound: the time that it takes to copy
// the same database, flush it to disk and start plain etcd with it.
func restores(t *testing.T) []row {
	p := harness.NewStandalonePod(t, nil)
	l := &lostVolume{t: t, pod: p, store: filepath.Join(p.Dir, "backups"), full: filepath.Join(p.Dir, "full")}
	l.fill(int64(*backupMB) << 10)
	l.restore().stop()
	restored := filepath.Join(p.Dir, "restored")
	require.NoError(t, os.Rename(p.DataDir(), restored))
	lowerBound, alone := l.alternate(restored)
	require.NoError(t, os.RemoveAll(restored))
	l.addHour()
	var with series
	for range restorePairs {
		r := l.restore()
		with = append(with, milliseconds(r.ready.Sub(r.started)))
		r.stop()
	}
	what := fmt.Sprintf("%.1f GB", float64(*backupMB)/1024)
	return []row{
		row{what: "restore of " + what + " from a folder until ready, compared with copying the database with fsync and starting plain etcd, ms", plain: lowerBound, wrapper: alone}.timesAtMost(1.5, "copy and start"),
		row{what: "restore of " + what + " until ready: without and with an hour of segments (1,000 writes per second), ms", plain: alone, wrapper: with}.costsAtMost(10_000, "ms"),
	}
}

// lostVolume is a single member that has backups and repeatedly loses its volume.
type lostVolume struct {
	t           *testing.T
	pod         *harness.Pod
	store, full string
	archive     *archive.Archive
	end         format.Start // end of the backups
}

// fill stores a full snapshot with the given number of 1 KB revisions.
func (l *lostVolume) fill(revisions int64) {
	l.t.Helper()
	require.NoError(l.t, os.Mkdir(l.store, 0o700))
	in, err := folder.New(l.store)
	require.NoError(l.t, err)
	l.archive = archive.New(in, &format.Keys{})
	l.end = restoretest.PutFull(l.t, l.archive, archive.NewID(), l.full, revisions, 900)
}

// addHour adds an hour of segments after the full snapshot, merged just as the program would.
func (l *lostVolume) addHour() {
	l.t.Helper()
	restoretest.PutSegments(l.t, l.archive, l.end, l.end.Position.Revision+hour*aSecond-1, aSecond, 200)
}

// restore deletes the volume, starts the program and waits until the volume has been restored and the member is ready.
// The program uses a copy of the store, so that each restore reads the same backups.
func (l *lostVolume) restore() *process {
	l.t.Helper()
	require.NoError(l.t, os.RemoveAll(l.pod.Volume))
	require.NoError(l.t, os.Mkdir(l.pod.Volume, 0o700))
	store := l.store + ".used"
	require.NoError(l.t, os.RemoveAll(store))
	run(l.t, "cp", "-al", l.store, store) // hard links suffice, because the program never overwrites an object
	used := standaloneSide(func(*harness.Pod) []string { return []string{"--backup-store=file://" + store} })
	r := used.launch(l.t, l.pod)
	r.awaitWithin(restoreLimit, http.StatusOK)
	r.ready = time.Now()
	return r
}

// alternate measures the lower bound and the restore alternately. Plain etcd starts with the data in the given data
// directory. Both times are in milliseconds.
func (l *lostVolume) alternate(dataDir string) (lowerBound, restore series) {
	l.t.Helper()
	l.pod.Config["data-dir"] = dataDir
	for range restorePairs {
		start := time.Now()
		copyFile(l.t, l.full, l.full+".copy")
		wrote := time.Since(start)
		r := plain.start(l.t, l.pod)
		lowerBound = append(lowerBound, milliseconds(wrote+r.ready.Sub(r.started)))
		r.stop()
		require.NoError(l.t, os.Remove(l.full+".copy"))
		r = l.restore()
		restore = append(restore, milliseconds(r.ready.Sub(r.started)))
		r.stop()
	}
	delete(l.pod.Config, "data-dir")
	return lowerBound, restore
}

// copyFile copies a file and flushes the copy to disk, which is the minimum that a restore must do.
func copyFile(t *testing.T, from, to string) {
	t.Helper()
	source, err := os.Open(from)
	require.NoError(t, err)
	defer source.Close() // nothing was written, so a close error is harmless
	file, err := os.Create(to)
	require.NoError(t, err)
	_, err = io.Copy(struct{ io.Writer }{file}, source) // hide ReadFrom: restores cannot use copy_file_range either
	require.NoError(t, err)
	require.NoError(t, file.Sync())
	require.NoError(t, file.Close())
}
