package archive_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format/seal"
	. "etcd-wrapper/backup/format/segment/segmenttest"
)

// Nothing is read, so it does not matter what is believed.
func TestNamesTellHowFarTheNewestGenerationGoes(t *testing.T) {
	w := begin(t, &seal.Keys{})
	told := func() int64 {
		t.Helper()
		revision, err := w.Told(t.Context())
		require.NoError(t, err)
		return revision
	}
	assert.EqualValues(t, 10, told(), "the first full's")
	w.segment(14)
	w.segment(20)
	assert.EqualValues(t, 14, told(), "the last segment's name does not tell its end")
	w.merge(archive.Minute, w.objects(archive.Segment)...)
	assert.EqualValues(t, 20, told())
	require.NoError(t, w.Reserve(t.Context(), archive.Reservation{Cluster: "next", Generation: 2, Revision: 7 * archive.Margin, Created: Noon}))
	assert.EqualValues(t, 20, told(), "a restore that was not granted has reserved something, too")
	require.NoError(t, w.BeginGeneration(t.Context(), archive.Generation{Number: 2, Cluster: "next", Parent: 1, ParentRevision: 20, Created: Noon}))
	assert.EqualValues(t, 6*archive.Margin, told())
}
