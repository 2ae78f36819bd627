package backups

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/archivetest"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/restore/sidecarstore/sidecarstoretest"
	"etcd-wrapper/backup/store/memory"
	"etcd-wrapper/bootstrap/datadir/datadirtest"
	"etcd-wrapper/cmd/suites/etcdtest"
)

// A sampleCluster contains the history of an etcd cluster: a snapshot and the rows that follow it.
type sampleCluster struct {
	snapshot []byte       // a stock snapshot
	revision int64        // revision of the snapshot
	last     int64        // revision of the last row
	rows     []format.Row // rows written after the snapshot, in revision order
	events   []sidecarstoretest.Event
}

// runSampleCluster runs etcd with two series of writes and takes a snapshot in between.
func runSampleCluster(t *testing.T) (l sampleCluster) {
	dir := t.TempDir()
	server, err := datadirtest.Start(dir)
	require.NoError(t, err)
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{server.Clients[0].Addr().String()}, Logger: zap.NewNop()})
	require.NoError(t, err)
	for i := range 20 {
		_, err := client.Put(t.Context(), fmt.Sprint("key", i%7), fmt.Sprint(i))
		require.NoError(t, err)
	}
	reader, err := client.Snapshot(t.Context())
	require.NoError(t, err)
	l.snapshot, err = io.ReadAll(reader)
	require.NoError(t, err)
	l.revision = 21
	for i := range 10 {
		_, err := client.Put(t.Context(), fmt.Sprint("key", i%7), fmt.Sprint("later", i))
		require.NoError(t, err)
	}
	l.last = l.revision + 10
	l.events = sidecarstoretest.UpTo(t, client.Watch(t.Context(), "", clientv3.WithPrefix(), clientv3.WithRev(l.revision+1)), l.last)
	require.NoError(t, client.Close())
	server.Close()
	l.rows = etcdtest.Rows(t, filepath.Join(dir, "member", "snap", "db"))
	return l
}

// rowsUpTo returns the rows up to and including a revision.
func (l sampleCluster) rowsUpTo(revision int64) []format.Row {
	i := slices.IndexFunc(l.rows, func(row format.Row) bool { return int64(binary.BigEndian.Uint64(row.Key)) > revision })
	if i < 0 {
		return l.rows
	}
	return l.rows[:i]
}

var noon = time.Date(2026, time.November, 22, 12, 0, 0, 0, time.UTC)

// store creates a store with one full snapshot and one segment.
func (l sampleCluster) store(t *testing.T) Settings { return l.storeWith(t, &format.Keys{}) }

func (l sampleCluster) storeWith(t *testing.T, keys *format.Keys) Settings {
	settings := Settings{Store: memory.New(), Keys: keys}
	kept := settings.Archive()
	_, err := kept.Create(t.Context(), archive.Cluster{Cluster: "c1", Created: noon}, 1)
	require.NoError(t, err)
	full, err := archivetest.PutFull(t.Context(), kept, archive.Full{
		Cluster: "c1", Generation: 1, Revision: l.revision, Time: noon, Chain: format.Seed("c1", 1, l.revision), Member: "m", Reason: "begin",
	}, bytes.NewReader(l.snapshot[:len(l.snapshot)-sha256.Size]))
	require.NoError(t, err)
	builder, err := format.NewSegmentBuilder(settings.Keys, full.Start())
	require.NoError(t, err)
	for _, row := range l.rows[len(l.rowsUpTo(l.revision)):] {
		require.NoError(t, builder.Add(&row))
		revision, err := row.Revision()
		require.NoError(t, err)
		require.NoError(t, builder.Add(&format.Marker{Revision: revision, Time: noon.Add(time.Duration(revision) * time.Second)}))
	}
	object, err := builder.Finish(format.Source{Member: "m"})
	require.NoError(t, err)
	require.NoError(t, archivetest.PutSegment(t.Context(), kept, object))
	return settings
}

// storeAsSidecar creates a store with a full snapshot and a delta snapshot in the format of etcd-backup-restore.
func (l sampleCluster) storeAsSidecar(t *testing.T) Settings {
	s := memory.New()
	s.SetContent("v2/"+sidecarstoretest.Name("Full", 0, l.revision, noon, ""), l.snapshot)
	var events []sidecarstoretest.Event
	for _, e := range l.events {
		events = append(events, sidecarstoretest.Event{EtcdEvent: e.EtcdEvent, Time: noon.Add(time.Duration(e.EtcdEvent.Kv.ModRevision) * time.Second)})
	}
	s.SetContent("v2/"+sidecarstoretest.Name("Incr", l.revision+1, l.last, noon.Add(time.Minute), ""), sidecarstoretest.Delta(t, events...))
	return Settings{Store: s, Keys: &format.Keys{}}
}

// requireSnapshot checks that a snapshot file contains the history up to a revision.
func (l sampleCluster) requireSnapshot(t *testing.T, path string, revision int64) {
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	database := content[:len(content)-sha256.Size]
	sum := sha256.Sum256(database)
	require.Equal(t, sum[:], content[len(database):])
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	require.NoError(t, os.WriteFile(path+".db", database, 0o600))
	require.Equal(t, l.rowsUpTo(revision), etcdtest.Rows(t, path+".db"))
	require.NoError(t, os.Remove(path+".db"))
}

// addFullWithoutData adds the manifest of a full snapshot without its data. gap is the number of revisions between
// the end of the chain and the snapshot.
func (l sampleCluster) addFullWithoutData(t *testing.T, settings Settings, gap int64) {
	kept := settings.Archive()
	head, err := kept.Head(t.Context(), 1)
	require.NoError(t, err)
	full := archive.Full{
		Cluster: "c1", Generation: 1, Revision: head.Revision(), Time: noon.Add(time.Hour), Reason: "schedule",
		Next: head.Position, Chain: head.Before, Last: head.Last,
	}
	if gap > 0 {
		full.Revision += gap
		full.Next, full.Chain, full.Last = format.After(full.Revision), format.Seed("c1", 1, full.Revision), format.Digest{}
	}
	full, err = archivetest.PutFull(t.Context(), kept, full, bytes.NewReader(l.snapshot))
	require.NoError(t, err)
	require.NoError(t, settings.Store.Delete(t.Context(), archive.DataName(1, full.Name())))
}

// addMarker adds a segment that contains no rows, only a marker for the time of the last revision.
func (l sampleCluster) addMarker(t *testing.T, kept *archive.Archive, start format.Start) {
	builder, err := format.NewSegmentBuilder(kept.Keys(), start)
	require.NoError(t, err)
	require.NoError(t, builder.Add(&format.Marker{Revision: l.last, Time: noon.Add(time.Hour)}))
	object, err := builder.Finish(format.Source{})
	require.NoError(t, err)
	require.NoError(t, archivetest.PutSegment(t.Context(), kept, object))
}
