package restoretest

import (
	"io"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/archivetest"
	"etcd-wrapper/backup/format"
)

// PutFull creates a cluster in an archive, stores a full snapshot that Full builds at path, and returns the position after it.
func PutFull(t testing.TB, a *archive.Archive, cluster, path string, revision int64, size int) format.Start {
	t.Helper()
	_, err := a.Create(t.Context(), archive.Cluster{Cluster: cluster, Owner: "etcd-cluster", Created: time.Now()}, 1)
	require.NoError(t, err)
	source := Full(t, path, revision, size)
	database, err := os.Open(path)
	require.NoError(t, err)
	defer database.Close() // it was only read
	full, err := archivetest.PutFull(t.Context(), a, archive.Full{
		Cluster: cluster, Generation: 1, Revision: revision, Time: time.Now(), Reason: "for a measurement", Chain: format.Seed(cluster, 1, revision),
	}, io.LimitReader(database, source.DatabaseBytes))
	require.NoError(t, err)
	return full.Start()
}

// PutSegments stores segments of the given number of revisions, up to the last one, and merges them to objects of an
// hour, as the program does.
func PutSegments(t testing.TB, a *archive.Archive, start format.Start, last, each int64, size int) {
	t.Helper()
	for from := start.Position.Revision; from <= last; from = start.Position.Revision {
		builder, err := format.NewSegmentBuilder(a.Keys(), start)
		require.NoError(t, err)
		require.NoError(t, Rows(from, min(last, from+each-1), size, func(row format.Row) error { return builder.Add(&row) }))
		require.NoError(t, builder.Add(&format.Marker{Revision: builder.End(), Time: time.Now()}))
		object, err := builder.Finish(format.Source{Term: 2, Member: "8e9e05c52164694d"})
		require.NoError(t, err)
		require.NoError(t, archivetest.PutSegment(t.Context(), a, object))
		start = object.Start()
	}
	objects, err := a.Objects(t.Context(), 1, archive.Segment)
	require.NoError(t, err)
	_, err = a.Merge(t.Context(), archive.Hour, objects)
	require.NoError(t, err)
}
