package archive_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format/seal/sealtest"
	. "etcd-wrapper/backup/format/segment/segmenttest"
	"etcd-wrapper/backup/store/memory"
)

// statedAt is what the lease "a" is said to be behind a revision; empty if nothing is said.
func (w *world) statedAt(revision int64) (value string) {
	w.t.Helper()
	bucket, err := w.Stated(w.ctx, w.find(archive.Target{Revision: revision}), "lease")
	require.NoError(w.t, err)
	if bucket != nil {
		for _, found := range bucket.Entries() {
			value = string(found)
		}
	}
	return value
}

func TestTheNextStatementOfABucketIsThatOfTheNextSegmentThatHasOne(t *testing.T) {
	w := begin(t, sealtest.New(t).Load(t))
	w.segment(12, Bucket("lease", "a", "1"))
	w.segment(14)
	w.segment(16, Bucket("alarm", "x", "y"))
	w.segment(18, Bucket("alarm", "x", "z"), Bucket("lease", "a", "2"))
	w.segment(18, Bucket("lease", "a", "3"))
	w.segment(20)
	check := func() {
		for revision, stated := range map[int64]string{10: "1", 11: "1", 12: "2", 13: "2", 14: "2", 16: "2", 17: "2", 18: "3", 19: "", 20: ""} {
			assert.Equal(t, stated, w.statedAt(revision), "revision %d", revision)
		}
	}
	check()
	segments := w.objects(archive.Segment)
	w.merge(archive.Minute, segments[:2]...)
	w.merge(archive.Minute, segments[2:5]...)
	check()
}

func TestAStatementThatCannotBeReadIsNone(t *testing.T) {
	w := begin(t, sealtest.New(t).Load(t))
	w.segment(12)
	stating := w.segment(14, Bucket("lease", "a", "1"))
	w.segment(16)
	name := archive.SegmentName(1, stating.Position)
	content, _ := w.store.Content(name)
	for _, bit := range []int{100, 8*len(content) - 40} {
		repair := w.damage(name, bit)
		assert.Empty(t, w.statedAt(11))
		repair()
	}
	require.NoError(t, w.store.Delete(t.Context(), name))
	assert.Empty(t, w.statedAt(11))
	w.store.SetContent(name, content)
	assert.Equal(t, "1", w.statedAt(11))

	path := w.find(archive.Target{Revision: 11})
	w.store.Inject(memory.Fault{Op: memory.Get, Err: memory.ErrDenied})
	_, err := w.Stated(w.ctx, path, "lease")
	assert.ErrorIs(t, err, memory.ErrDenied)
}

func TestWhatIsBehindAGapStatesNothingOfWhatIsBeforeIt(t *testing.T) {
	w := begin(t, sealtest.New(t).Load(t))
	w.segment(12)
	w.gap(20)
	w.segment(22, Bucket("lease", "a", "1"))
	assert.Empty(t, w.statedAt(11))
	assert.Equal(t, "1", w.statedAt(20))
}
