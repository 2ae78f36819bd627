package backups

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/archivetest"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store/memory"
)

// writtenAt returns the time at which a revision was written, which is noon plus one second per revision. A fraction
// is a point in time between two revisions.
func writtenAt(seconds float64) time.Time {
	return noon.Add(time.Duration(seconds * float64(time.Second)))
}

// storeWithThreeFulls creates a store with full snapshots at the first revision, at middle and at the last revision,
// and with one segment between each two of them.
func (l sampleCluster) storeWithThreeFulls(t *testing.T, middle int64) Settings {
	settings := l.keepUpTo(t, middle)
	kept := settings.Archive()
	for _, last := range []int64{middle, l.last} {
		file := filepath.Join(t.TempDir(), "full")
		if last > middle {
			l.ship(t, settings, last)
		}
		_, err := Export(t.Context(), settings, archive.Target{Revision: last}, file, NewMeter(nil))
		require.NoError(t, err)
		snapshot, err := os.ReadFile(file)
		require.NoError(t, err)
		head, err := kept.Head(t.Context(), 1)
		require.NoError(t, err)
		_, err = archivetest.PutFull(t.Context(), kept, archive.Full{
			Cluster: "c1", Generation: 1, Revision: last, Next: head.Position, Chain: head.Before, Last: head.Last,
			Time: writtenAt(float64(last)), Member: "m", Reason: "schedule",
		}, bytes.NewReader(snapshot[:len(snapshot)-sha256.Size]))
		require.NoError(t, err)
	}
	return settings
}

// keepUpTo creates a store with one full snapshot and one segment, which ends at revision last.
func (l sampleCluster) keepUpTo(t *testing.T, last int64) Settings {
	settings := Settings{Store: memory.New(), Keys: &format.Keys{}}
	kept := settings.Archive()
	_, err := kept.Create(t.Context(), archive.Cluster{Cluster: "c1", Created: noon}, 1)
	require.NoError(t, err)
	_, err = archivetest.PutFull(t.Context(), kept, archive.Full{
		Cluster: "c1", Generation: 1, Revision: l.revision, Time: writtenAt(float64(l.revision)), Chain: format.Seed("c1", 1, l.revision), Member: "m", Reason: "begin",
	}, bytes.NewReader(l.snapshot[:len(l.snapshot)-sha256.Size]))
	require.NoError(t, err)
	l.ship(t, settings, last)
	return settings
}

// ship uploads the next segment, which ends at revision last.
func (l sampleCluster) ship(t *testing.T, settings Settings, last int64) {
	kept := settings.Archive()
	head, err := kept.Head(t.Context(), 1)
	require.NoError(t, err)
	builder, err := format.NewSegmentBuilder(settings.Keys, head.Start)
	require.NoError(t, err)
	for _, row := range l.rowsUpTo(last)[len(l.rowsUpTo(head.Revision())):] {
		revision, err := row.Revision()
		require.NoError(t, err)
		require.NoError(t, builder.Add(&row))
		require.NoError(t, builder.Add(&format.Marker{Revision: revision, Time: writtenAt(float64(revision))}))
	}
	object, err := builder.Finish(format.Source{Member: "m"})
	require.NoError(t, err)
	require.NoError(t, archivetest.PutSegment(t.Context(), kept, object))
}

// A target at either end of the available revisions must select exactly that revision.
func TestTargets_edges(t *testing.T) {
	l := runSampleCluster(t)
	first, middle, last := l.revision, l.revision+5, l.last
	settings := l.storeWithThreeFulls(t, middle)
	window := fmt.Sprintf("revisions %d to %d (", first, last)
	for _, example := range []struct {
		target   archive.Target
		revision int64 // expected revision; 0 if the target is not available
	}{
		{archive.Target{}, last},
		{archive.Target{Revision: first}, first},
		{archive.Target{Revision: first + 1}, first + 1},
		{archive.Target{Revision: middle - 1}, middle - 1},
		{archive.Target{Revision: middle}, middle},
		{archive.Target{Revision: middle + 1}, middle + 1},
		{archive.Target{Revision: last - 1}, last - 1},
		{archive.Target{Revision: last}, last},
		{archive.Target{Revision: last + 1}, 0},
		{archive.Target{Revision: first - 1}, 0},
		{archive.Target{Revision: 1}, 0},
		{archive.Target{Revision: last, Generation: 2}, 0},
		{archive.Target{Generation: 2}, 0},
		{archive.Target{Time: writtenAt(float64(first))}, 0},
		{archive.Target{Time: writtenAt(float64(first) + .999)}, 0}, // the full snapshot was taken within this second
		{archive.Target{Time: writtenAt(float64(first) + 1)}, first + 1},
		{archive.Target{Time: writtenAt(float64(middle) - .001)}, middle - 1},
		{archive.Target{Time: writtenAt(float64(middle))}, middle},
		{archive.Target{Time: writtenAt(float64(middle) + .999)}, middle},
		{archive.Target{Time: writtenAt(float64(middle) + 1)}, middle + 1},
		{archive.Target{Time: writtenAt(float64(last))}, last},
		{archive.Target{Time: writtenAt(float64(last)).Add(time.Hour)}, last}, // no later revision exists
	} {
		what := fmt.Sprintf("%s of %d", example.target, example.target.Generation)
		path, plan := filepath.Join(t.TempDir(), "out.db"), planned(t)
		exported, err := Export(t.Context(), settings, example.target, path, NewMeter(nil))
		restored, failed := Restore(t.Context(), settings, example.target, plan, NewMeter(nil))
		if example.revision == 0 {
			require.ErrorIs(t, err, archive.ErrNotKept, what)
			require.ErrorContains(t, err, window, what)
			require.EqualError(t, failed, err.Error(), what)
			assert.NoFileExists(t, path)
			assert.NoDirExists(t, plan.DataDir)
			continue
		}
		require.NoError(t, err, what)
		require.NoError(t, failed, what)
		assert.Equal(t, []int64{example.revision, example.revision}, []int64{exported.Revision, restored.Revision}, what)
		l.requireSnapshot(t, path, example.revision)
	}
}

func TestTargets_emptyStore(t *testing.T) {
	settings := Settings{Store: memory.New(), Keys: &format.Keys{}}
	for _, target := range []archive.Target{{}, {Revision: 1}, {Time: noon}, {Generation: 1}} {
		_, err := Export(t.Context(), settings, target, filepath.Join(t.TempDir(), "out.db"), NewMeter(nil))
		require.ErrorContains(t, err, "is not available in memory://test/; restore points: none")
		_, err = Restore(t.Context(), settings, target, planned(t), NewMeter(nil))
		require.ErrorContains(t, err, "is not available in memory://test/; restore points: none")
	}
}
