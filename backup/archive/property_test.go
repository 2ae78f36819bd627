package archive_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/archivetest"
	"etcd-wrapper/backup/archive/retention"
	"etcd-wrapper/backup/format"
	. "etcd-wrapper/backup/format/formattest"
	"etcd-wrapper/backup/store"
)

// TestRead_randomHistories lets two racing writers write one history while
// it is merged and full snapshots are made. Then each revision must be read as it was.
func TestRead_randomHistories(t *testing.T) {
	sealed := NewKeys(t).Load(t)
	rapid.Check(t, func(rt *rapid.T) {
		keys := &format.Keys{}
		if rapid.Bool().Draw(rt, "sealed") {
			keys = sealed
		}
		first := begin(rt, keys)
		writers := []*world{first, first.again()}
		for range rapid.IntRange(1, 30).Draw(rt, "steps") {
			i := rapid.IntRange(0, 1).Draw(rt, "writer")
			w, other := writers[i], writers[1-i]
			switch rapid.IntRange(0, 6).Draw(rt, "what") {
			case 0:
				mergeSome(rt, w, other, archive.Minute, archive.Segment)
			case 1:
				mergeSome(rt, w, other, archive.Hour, archive.Minute)
			case 2:
				w.next = w.head().Start
				w.full()
			case 3: // of a member that has cut the rows differently
				if last := w.head().Revision(); last > 10 {
					other := w.again()
					other.next = unbroken(rt, keys, rapid.Int64Range(11, last).Draw(rt, "full")).Start()
					other.full()
				}
			default:
				write(rt, w)
			}
		}
		head := first.head()
		require.Equal(rt, unbroken(rt, keys, head.Revision()).After, head.Before, "the digest of a history that was never cut")
		target := archive.Target{Revision: rapid.Int64Range(10, head.Revision()).Draw(rt, "target")}
		result, _, err := first.instead(target)
		require.NoError(rt, err)
		require.Equal(rt, revisions(result.full+1, target.Revision), result.revisions)
		result, _, err = first.instead(archive.Target{})
		require.NoError(rt, err)
		require.Equal(rt, head.Before, result.Chain)
	})
}

// unbroken returns a segment with everything after the first full snapshot.
func unbroken(t T, keys *format.Keys, last int64) format.Object {
	start := format.Start{Cluster: cluster, Generation: 1, Position: format.After(10), Before: format.Seed(cluster, 1, 10)}
	return Build(t, keys, start, Rows(11, last))
}

// write stores the next segment, or continues after the other writer if that was faster.
func write(rt *rapid.T, w *world) {
	var buckets []*format.Bucket
	if rapid.Bool().Draw(rt, "bucket") {
		buckets = append(buckets, Bucket("lease", "of", fmt.Sprint(w.next.Position)))
	}
	last := w.next.Position.Revision - 1 + rapid.Int64Range(0, 3).Draw(rt, "revisions")
	object := w.build(last, buckets...)
	err := archivetest.PutSegment(w.ctx, w.Archive, object)
	if err != nil {
		require.ErrorIs(w.t, err, store.ErrExists)
	}
	if w.next = object.Start(); err != nil || w.stale { // too late
		w.next, w.stale = w.head().Start, false
	}
}

// mergeSome merges some neighbours of a level and deletes what it may. The other writer does not know.
func mergeSome(rt *rapid.T, w, other *world, into, from archive.Level) {
	objects := w.objects(from)
	if len(objects) == 0 {
		return
	}
	begin := rapid.IntRange(0, len(objects)-1).Draw(rt, "first")
	end := rapid.IntRange(begin+1, len(objects)).Draw(rt, "last")
	if !contiguous(w, objects[begin:end]) {
		return
	}
	merged, err := w.Merge(w.ctx, into, objects[begin:end])
	if errors.Is(err, archive.ErrHole) { // the other writer has cut the same rows differently
		require.True(w.t, into == archive.Minute && overlapped(w, objects[begin:end]), "%s: %s", merged.Name(), err)
	} else if err != nil {
		require.ErrorIs(w.t, err, store.ErrExists)
	}
	w.deleteMerged()
	w.next, other.stale = w.head().Start, true
}

// deleteMerged deletes what merged objects cover, except the newest segment, no matter which reads are in progress.
func (w *world) deleteMerged() {
	segments, minutes, hours := w.objects(archive.Segment), w.objects(archive.Minute), w.objects(archive.Hour)
	w.deleteHeld(segments[:max(0, len(segments)-1)], slices.Concat(minutes, hours))
	w.deleteHeld(minutes, hours)
}

func (w *world) deleteHeld(objects, merged []archive.Object) {
	for _, one := range merged {
		for _, object := range retention.Covered(objects, one) {
			require.NoError(w.t, w.store.Delete(w.ctx, object.Name()))
		}
	}
}

// overlapped reports whether another segment or a merged object is within the range of these segments.
func overlapped(w *world, these []archive.Object) bool {
	from := these[0].Start
	last, err := w.Manifest(w.ctx, 1, these[len(these)-1].Start)
	require.NoError(w.t, err)
	all := slices.Concat(w.objects(archive.Segment), w.objects(archive.Minute), w.objects(archive.Hour))
	return slices.ContainsFunc(all, func(other archive.Object) bool {
		within := other.Start.Compare(from) > 0 || other.Next.Compare(from) > 0
		return within && other.Start.Compare(last.Next()) < 0 && !slices.Contains(these, other)
	})
}

// contiguous reports whether objects follow one another.
func contiguous(w *world, objects []archive.Object) bool {
	for i, object := range objects[1:] {
		next := objects[i].Next
		if next.IsZero() {
			manifest, err := w.Manifest(w.ctx, 1, objects[i].Start)
			require.NoError(w.t, err)
			next = manifest.Next()
		}
		if next != object.Start {
			return false
		}
	}
	return true
}

func TestRead_flippedBits(t *testing.T) {
	for name, keys := range map[string]*format.Keys{"plain": {}, "sealed": NewKeys(t).Load(t)} {
		t.Run(name, func(t *testing.T) {
			w := begin(t, keys)
			w.segment(14, Bucket("lease", "a", "1"))
			w.full()
			w.segments(18, 20)
			w.merge(archive.Minute, w.objects(archive.Segment)[:2]...)
			right := w.restore(archive.Target{})
			noticed := 0
			for _, object := range w.names("") {
				content, _ := w.store.Content(object)
				for bit := range 8 * len(content) {
					if bit%53 != 0 { // errorOf a hundredth; other tests flip every bit of a segment, a full snapshot and a line
						continue
					}
					repair := w.damage(object, bit)
					path, err := w.Find(w.ctx, archive.Target{})
					var result restored
					if err == nil {
						result, err = w.follow(path)
					}
					repair()
					if err != nil || path.PastEnd != nil {
						noticed++
						continue
					}
					assert.Equal(t, right.Revision, result.Revision, "%s bit %d", object, bit)
					assert.Equal(t, revisions(result.full+1, 20), result.revisions)
				}
			}
			assert.Positive(t, noticed)
		})
	}
}

// statementsOf returns the objects of an archive that consist of a statement.
var statementsOf = []string{
	"cluster.json", "gen/000001/generation.json", "reservation/0000000000000000100",
	"gen/000001/full/0000000000000000010-20261122T120010Z/manifest.json",
	"gen/000001/verified/0000000000000000010-20261122T120010Z_20261122T120100Z.json",
}

// FuzzManifests replaces each statement by any other with a correct checksum, as anyone can who writes to the store.
func FuzzManifests(f *testing.F) {
	w := begin(f, &format.Keys{}, 14)
	require.NoError(f, w.Reserve(w.ctx, archive.Reservation{Cluster: cluster, Generation: 1, Revision: 100, Created: Noon}))
	full := *w.head().Full
	require.NoError(f, w.PutResult(w.ctx, archive.Result{Generation: 1, Full: full.Name(), Outcome: archive.Verified, At: TimeAt(60)}))
	for _, name := range append(w.names("gen/000001/segment/"), statementsOf...) {
		content, exists := w.store.Content(name)
		require.True(f, exists, name)
		begin, _, _ := bytes.Cut(content, []byte(`,"sha256":"`+checksumOf(content)))
		f.Add(begin)
	}
	f.Fuzz(func(t *testing.T, begin []byte) {
		w := *w
		w.t = t
		for _, name := range statementsOf {
			right, _ := w.store.Content(name)
			w.store.SetContent(name, checked(begin))
			result, err := w.try(archive.Target{})
			if err == nil {
				assert.Equal(t, revisions(result.full+1, result.Revision), result.revisions)
			}
			_, _ = w.Head(w.ctx, 1)
			_, _ = w.Reserved(w.ctx)
			w.store.SetContent(name, right)
		}
		w.store.SetContent(archive.SegmentName(1, format.After(14)), checked(begin))
		_, _ = w.try(archive.Target{})
		_, _ = w.try(archive.Target{Time: TimeAt(15)})
		_, _ = w.Head(w.ctx, 1)
		require.NoError(t, w.store.Delete(w.ctx, archive.SegmentName(1, format.After(14))))
	})
}

// checked ends a line with its checksum.
func checked(begin []byte) []byte {
	return fmt.Appendf(bytes.Clone(begin), ",\"sha256\":\"%x\"}\n", sha256.Sum256(begin))
}

// checksumOf returns the checksum at the end of a line.
func checksumOf(line []byte) string {
	line, _, _ = bytes.Cut(line, []byte("\n"))
	return string(line[len(line)-66 : len(line)-2])
}
