package formattest

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/format"
)

// T is implemented by tests and by those of rapid.
type T interface {
	require.TestingT
	Helper()
}

// Row is the one of a change: the number of those of its revision before it is sub.
func Row(revision, sub int64, value string) format.Row {
	key := binary.BigEndian.AppendUint64(nil, uint64(revision))
	key = binary.BigEndian.AppendUint64(append(key, '_'), uint64(sub))
	return format.Row{Key: key, Value: []byte(value)}
}

// Rows are one row for each revision from first to last.
func Rows(first, last int64) (rows []format.Row) {
	for revision := first; revision <= last; revision++ {
		rows = append(rows, Row(revision, 0, fmt.Sprintf("value %d", revision)))
	}
	return rows
}

// Noon is the time of revision 0.
var Noon = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

// TimeAt returns the time of a revision: there is one every second.
func TimeAt(revision int64) time.Time { return Noon.Add(time.Duration(revision) * time.Second) }

// Build makes a segment of rows and buckets, with a marker behind each revision.
func Build(t T, keys *format.Keys, start format.Start, rows []format.Row, buckets ...*format.Bucket) format.Object {
	t.Helper()
	var records []format.Record
	for i, row := range rows {
		records = append(records, &row)
		if revision := revisionOf(t, row); i == len(rows)-1 || revisionOf(t, rows[i+1]) > revision {
			records = append(records, &format.Marker{Revision: revision, Time: TimeAt(revision)})
		}
	}
	for _, bucket := range buckets {
		records = append(records, bucket)
	}
	return Segment(t, keys, start, format.Source{Term: 2, Member: "8e9e05c52164694d"}, records...)
}

// Segment makes one of records.
func Segment(t T, keys *format.Keys, start format.Start, source format.Source, records ...format.Record) format.Object {
	t.Helper()
	builder, err := format.NewSegmentBuilder(keys, start)
	require.NoError(t, err)
	for _, record := range records {
		require.NoError(t, builder.Add(record))
	}
	object, err := builder.Finish(source)
	require.NoError(t, err)
	return object
}

func revisionOf(t T, row format.Row) int64 {
	t.Helper()
	revision, err := row.Revision()
	require.NoError(t, err)
	return revision
}

// Bucket makes one of keys and values in turn.
func Bucket(name string, entries ...string) *format.Bucket {
	bucket := format.NewBucket(name)
	for i := 0; i < len(entries); i += 2 {
		bucket.Add([]byte(entries[i]), []byte(entries[i+1]))
	}
	return bucket
}
