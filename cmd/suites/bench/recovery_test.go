//go:build bench

package bench_test

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"etcd-wrapper/bootstrap/backup/archive"
	"etcd-wrapper/bootstrap/backup/rebuild/rebuildtest"
	"etcd-wrapper/bootstrap/backup/seal"
	"etcd-wrapper/bootstrap/backup/segment"
	"etcd-wrapper/bootstrap/backup/store/folder"
	"etcd-wrapper/bootstrap/recovery"
	"etcd-wrapper/cmd/suites/harness"
)

const (
	restorePairs = 3
	restoreLimit = 5 * time.Minute
	hour         = 3600 // segments of a second each
	aSecond      = 1000 // writes
)

// restores measures how long a lost volume takes to come back from a folder, beside what it cannot do without: writing as
// much, and etcd's own start.
func restores(t *testing.T) []row {
	p := harness.NewStandalonePod(t, nil)
	l := &lostVolume{t: t, pod: p, store: filepath.Join(p.Dir, "backups"), full: filepath.Join(p.Dir, "full")}
	l.fill(int64(*backupMB) << 10)
	l.restore().stop()
	floor := filepath.Join(p.Dir, "floor")
	require.NoError(t, os.Rename(p.DataDir(), floor))
	least, alone := l.inTurns(floor)
	require.NoError(t, os.RemoveAll(floor))
	l.addHour()
	var with series
	for range restorePairs {
		r := l.restore()
		with = append(with, milliseconds(r.ready.Sub(r.began)))
		r.stop()
	}
	what := fmt.Sprintf("%.1f GB", float64(*backupMB)/1024)
	return []row{
		row{what: "writing " + what + " with fsync and plain etcd's start on it; restore of that from a folder until ready, ms", plain: least, wrapper: alone}.timesAtMost(1.5, "these"),
		row{what: "restore of " + what + " until ready: alone; with an hour of 1,000 writes a second behind it, ms", plain: alone, wrapper: with}.costsAtMost(10_000, "ms"),
	}
}

// lostVolume is a member alone with backups, whose volume is lost again and again.
type lostVolume struct {
	t           *testing.T
	pod         *harness.Pod
	store, full string
	archive     *archive.Archive
	end         segment.Start // of what is backed up
}

// fill makes a full with so many revisions of 1 KB.
func (l *lostVolume) fill(revisions int64) {
	l.t.Helper()
	require.NoError(l.t, os.Mkdir(l.store, 0o700))
	in, err := folder.New(l.store)
	require.NoError(l.t, err)
	l.archive = archive.New(in, &seal.Keys{})
	cluster := l.cluster()
	_, err = l.archive.Found(l.t.Context(), cluster, time.Now())
	require.NoError(l.t, err)
	source := rebuildtest.Full(l.t, l.full, revisions, 900)
	require.NoError(l.t, os.Truncate(l.full, source.DatabaseBytes))
	database, err := os.Open(l.full)
	require.NoError(l.t, err)
	defer database.Close()
	full, err := l.archive.PutFull(l.t.Context(), archive.Full{
		Cluster: cluster, Generation: 1, Revision: revisions, Time: time.Now(), Reason: "for a measurement", Chain: segment.Seed(cluster, 1, revisions),
	}, database)
	require.NoError(l.t, err)
	l.end = full.Start()
}

// cluster is the id of the one that the pod's configuration founds.
func (l *lostVolume) cluster() string {
	l.t.Helper()
	config := maps.Clone(l.pod.Config)
	config["data-dir"] = l.pod.DataDir()
	text, err := yaml.Marshal(config)
	require.NoError(l.t, err)
	seed, err := recovery.SeedOf(text, l.pod.DataDir(), fmt.Sprint(l.pod.Config["initial-cluster-token"]))
	require.NoError(l.t, err)
	id, err := seed.ClusterID()
	require.NoError(l.t, err)
	return strconv.FormatUint(id, 16)
}

// addHour puts an hour's segments behind the full, merged as the program merges them.
func (l *lostVolume) addHour() {
	l.t.Helper()
	for range hour {
		builder, err := segment.NewBuilder(l.archive.Keys(), l.end)
		require.NoError(l.t, err)
		from := l.end.Position.Revision
		require.NoError(l.t, rebuildtest.Rows(from, from+aSecond-1, 200, builder.Row))
		require.NoError(l.t, builder.Marker(segment.Marker{Revision: builder.End(), Time: time.Now()}))
		object, err := builder.Finish(segment.Source{Term: 2, Member: "8e9e05c52164694d"})
		require.NoError(l.t, err)
		require.NoError(l.t, l.archive.PutSegment(l.t.Context(), object))
		l.end = object.Start()
	}
	objects, err := l.archive.Objects(l.t.Context(), 1, archive.Segment, segment.Position{})
	require.NoError(l.t, err)
	_, err = l.archive.Merge(l.t.Context(), archive.Hour, objects)
	require.NoError(l.t, err)
}

// restore loses the volume and starts the program, which is ready with what was backed up. The store stays as it was.
func (l *lostVolume) restore() *process {
	l.t.Helper()
	require.NoError(l.t, os.RemoveAll(l.pod.Volume))
	require.NoError(l.t, os.Mkdir(l.pod.Volume, 0o700))
	store := l.store + ".used"
	require.NoError(l.t, os.RemoveAll(store))
	run(l.t, "cp", "-al", l.store, store) // nothing is ever written over
	used := standaloneSide(func(*harness.Pod) []string { return []string{"--backup-store=file://" + store} })
	r := used.launch(l.t, l.pod)
	r.awaitWithin(restoreLimit, http.StatusOK)
	r.ready = time.Now()
	return r
}

// inTurns measures what is needed at least, and a restore.
func (l *lostVolume) inTurns(floor string) (least, whole series) {
	l.t.Helper()
	l.pod.Config["data-dir"] = floor
	for range restorePairs {
		began := time.Now()
		writeAndFlush(l.t, l.full, l.full+".copy")
		wrote := time.Since(began)
		r := plain.start(l.t, l.pod)
		least = append(least, milliseconds(wrote+r.ready.Sub(r.began)))
		r.stop()
		require.NoError(l.t, os.Remove(l.full+".copy"))
		r = l.restore()
		whole = append(whole, milliseconds(r.ready.Sub(r.began)))
		r.stop()
	}
	delete(l.pod.Config, "data-dir")
	return least, whole
}

func writeAndFlush(t *testing.T, from, to string) {
	t.Helper()
	source, err := os.Open(from)
	require.NoError(t, err)
	defer source.Close()
	file, err := os.Create(to)
	require.NoError(t, err)
	defer file.Close()
	_, err = io.Copy(struct{ io.Writer }{file}, source) // no copy_file_range: the bytes come from elsewhere
	require.NoError(t, err)
	require.NoError(t, file.Sync())
}
