package archive_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format/seal"
	"etcd-wrapper/backup/format/segment"
	. "etcd-wrapper/backup/format/segment/segmenttest"
)

// A key of the revision may belong to a lease that only the end of its segment knows.
func TestBucketsOfTheEndOfTheRevisionsSegmentAreTold(t *testing.T) {
	w := begin(t, &seal.Keys{})
	w.segment(14, Bucket("lease", "1", "before"))
	w.segment(20, Bucket("lease", "2", "later"))
	for revision, want := range map[int64]int{14: 0, 17: 1, 20: 0} {
		path, err := w.Find(t.Context(), archive.Target{Revision: revision})
		require.NoError(t, err)
		reading, err := w.Read(t.Context(), path, func(segment.Row) error { return nil })
		require.NoError(t, err)
		require.Len(t, reading.Later, want, "revision %d", revision)
		require.Len(t, reading.Buckets, 1)
		for _, later := range reading.Later {
			for key := range later.Entries() {
				require.Equal(t, "2", string(key))
			}
		}
	}
}
