package archive_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format/seal"
	"etcd-wrapper/backup/format/seal/sealtest"
	"etcd-wrapper/backup/format/segment"
	. "etcd-wrapper/backup/format/segment/segmenttest"
	"etcd-wrapper/backup/store/memory"
)

// instead restores, and goes another way as often as there is one.
func (w *world) instead(target archive.Target) (restored, archive.Path, error) {
	w.t.Helper()
	path, err := w.Find(w.ctx, target)
	for err == nil {
		result, failed := w.follow(path)
		if failed == nil {
			return result, path, nil
		}
		path, err = w.Instead(w.ctx, path, failed)
	}
	return restored{}, path, err
}

// spoilt are the ways in which an object is of no use.
func (w *world) spoilt() map[string]func(name string) {
	return map[string]func(name string){
		"missing": func(name string) { require.NoError(w.t, w.store.Delete(w.ctx, name)) },
		"damaged": func(name string) {
			content, _ := w.store.Content(name)
			w.damage(name, 8*len(content)-40)
		},
	}
}

func TestAnOlderFullLeadsToTheSameRevisionIfTheNewestIsOfNoUse(t *testing.T) {
	for how := range (&world{}).spoilt() {
		t.Run(how, func(t *testing.T) {
			w := begin(t, sealtest.New(t).Load(t))
			w.segment(12)
			middle := w.full()
			w.segment(14)
			newest := w.full()
			w.segment(16)
			w.spoilt()[how](archive.DataName(1, newest.Name()))
			for _, target := range []archive.Target{{}, {Revision: 16}, {Time: At(16)}} {
				result, path, err := w.instead(target)
				require.NoError(t, err)
				assert.EqualValues(t, 12, result.full, "%s", target)
				assert.Equal(t, revisions(13, 16), result.revisions)
				assert.EqualValues(t, 16, path.Revision)
				assert.Equal(t, w.find(target).Time, path.Time, "%s", target)
			}
			w.spoilt()[how](archive.DataName(1, middle.Name()))
			result, _, err := w.instead(archive.Target{})
			require.NoError(t, err)
			assert.Equal(t, revisions(11, 16), result.revisions)
			w.spoilt()[how](archive.DataName(1, w.history().Newest().Fulls[0].Name()))
			_, _, err = w.instead(archive.Target{})
			assert.ErrorIs(t, err, archive.ErrNotKept, "nothing else is there")
		})
	}
}

func TestWithoutTheFullThatBeginsAChainTheOneBeforeIsWhatComesBack(t *testing.T) {
	for how := range (&world{}).spoilt() {
		t.Run(how, func(t *testing.T) {
			w := begin(t, &seal.Keys{})
			w.segment(14)
			newest := w.gap(30)
			w.segment(36)
			sought := w.find(archive.Target{})
			require.EqualValues(t, 36, sought.Revision)
			w.spoilt()[how](archive.DataName(1, newest.Name()))
			result, path, err := w.instead(archive.Target{})
			require.NoError(t, err)
			assert.EqualValues(t, 14, path.Revision)
			assert.Equal(t, revisions(11, 14), result.revisions, "what is behind the gap belongs to the full alone")
			_, _, err = w.instead(archive.Target{Revision: 36})
			assert.ErrorIs(t, err, archive.ErrNotKept)
		})
	}
}

func TestBehindASegmentOfNoUseTheLatestRevisionIsTheOneBeforeAndTheDifferenceIsWhatIsLost(t *testing.T) {
	for how := range (&world{}).spoilt() {
		t.Run(how, func(t *testing.T) {
			w := begin(t, sealtest.New(t).Load(t))
			for last := int64(12); last <= 20; last += 2 {
				w.segment(last)
			}
			sought := w.find(archive.Target{})
			require.EqualValues(t, 20, sought.Revision)
			w.spoilt()[how](archive.SegmentName(1, segment.After(14)))
			_, failed := w.follow(sought)
			other, err := w.Instead(w.ctx, sought, failed)
			require.NoError(t, err)
			assert.EqualValues(t, 14, other.Revision, "six revisions are lost")
			result, err := w.follow(other)
			require.NoError(t, err)
			assert.Equal(t, revisions(11, 14), result.revisions)

			exact := archive.Target{Revision: 18}
			_, _, err = w.instead(exact)
			assert.ErrorIs(t, err, archive.ErrNotKept, "what was asked for by its revision is that or nothing")
			result, _, err = w.instead(archive.Target{Revision: 14})
			require.NoError(t, err)
			assert.Equal(t, revisions(11, 14), result.revisions)
		})
	}
}

func TestOfAMergedObjectThatIsDamagedTheBeginningIsRead(t *testing.T) {
	w := begin(t, &seal.Keys{})
	for last := int64(12); last <= 20; last += 2 {
		w.segment(last)
	}
	segments := w.objects(archive.Segment)
	merged := w.merge(archive.Minute, segments[:4]...)
	content, _ := w.store.Content(merged.Name())
	w.damage(merged.Name(), 8*(len(content)*5/8))
	result, path, err := w.instead(archive.Target{})
	require.NoError(t, err)
	assert.EqualValues(t, 14, path.Revision)
	assert.Equal(t, revisions(11, 14), result.revisions)
}

func TestSegmentsThatAreStillThereStandInForWhatTheyWereMergedTo(t *testing.T) {
	w := begin(t, &seal.Keys{})
	w.segment(12)
	w.segment(14)
	w.segment(16)
	merged, err := w.Merge(w.ctx, archive.Minute, w.objects(archive.Segment)[:2])
	require.NoError(t, err)
	w.damage(merged.Name(), 8*int(merged.Size)-40)
	result, path, err := w.instead(archive.Target{})
	require.NoError(t, err)
	assert.Equal(t, revisions(11, 16), result.revisions)
	assert.Len(t, path.Objects, 3)
}

func TestAFullBehindASegmentOfNoUseIsTheWayToWhatComesBehindIt(t *testing.T) {
	w := begin(t, &seal.Keys{})
	w.segment(12)
	w.segment(14)
	full := w.full()
	w.segment(16)
	w.damage(archive.DataName(1, full.Name()), 99)
	require.NoError(t, w.store.Delete(w.ctx, archive.SegmentName(1, segment.After(12))))
	result, path, err := w.instead(archive.Target{})
	require.NoError(t, err)
	assert.EqualValues(t, 12, path.Revision, "neither by the full nor by what is before it")
	assert.Equal(t, revisions(11, 12), result.revisions)
}

// The last object's statement tells where the chain ends.
func TestALastSegmentThatCannotBeBelievedIsLeftOutAndToldOf(t *testing.T) {
	w := begin(t, sealtest.New(t).Load(t))
	w.segment(12)
	last := w.segment(14)
	w.damage(archive.SegmentName(1, last.Position), 300)
	path := w.find(archive.Target{})
	assert.EqualValues(t, 12, path.Revision)
	assert.Error(t, path.Beyond)
	result, err := w.follow(path)
	require.NoError(t, err)
	assert.Equal(t, revisions(11, 12), result.revisions)
	assert.NoError(t, w.find(archive.Target{Revision: 11}).Beyond)
	_, err = w.Find(w.ctx, archive.Target{Revision: 13})
	assert.ErrorIs(t, err, archive.ErrNotKept)
	assert.EqualValues(t, 12, w.find(archive.Target{Time: At(12)}).Revision)
	_, err = w.Find(w.ctx, archive.Target{Time: At(13)})
	assert.ErrorIs(t, err, archive.ErrNotKept, "what was there at that time, or nothing")
	head := w.head()
	assert.Error(t, head.Damaged)
	assert.EqualValues(t, 12, head.Revision())
}

func TestWhatIsNotAboutTheBackupsHasNoOtherWay(t *testing.T) {
	w := begin(t, &seal.Keys{})
	w.segment(12)
	w.full()
	path := w.find(archive.Target{})
	other := errors.New("no room")
	_, err := w.Instead(w.ctx, path, other)
	assert.Equal(t, other, err)
	w.store.Inject(memory.Fault{Op: memory.Get, Err: memory.ErrDenied})
	_, failed := w.follow(path)
	_, err = w.Instead(w.ctx, path, failed)
	assert.Equal(t, failed, err)
}
