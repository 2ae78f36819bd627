package backups

import (
	"bytes"
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
	"etcd-wrapper/backup/format/formattest"
	"etcd-wrapper/backup/store/memory"
)

func TestExport_everyKeptRevision(t *testing.T) {
	l := runSampleCluster(t)
	for who, settings := range map[string]Settings{"ours": l.store(t), "the sidecar's": l.storeAsSidecar(t)} {
		for _, example := range []struct {
			target   archive.Target
			revision int64
		}{
			{archive.Target{}, l.last},
			{archive.Target{Revision: l.revision}, l.revision},
			{archive.Target{Revision: l.revision + 4}, l.revision + 4},
			{archive.Target{Time: noon.Add(time.Duration(l.last-2) * time.Second)}, l.last - 2},
		} {
			dir := t.TempDir()
			path := filepath.Join(dir, "out.db")
			exported, err := Export(t.Context(), settings, example.target, path, NewMeter(nil))
			require.NoError(t, err, "%s: %s", who, example.target)
			assert.Equal(t, example.revision, exported.Revision, "%s: %s", who, example.target)
			assert.Equal(t, example.revision-l.revision, exported.Rows)
			l.requireSnapshot(t, path, example.revision)
			left, err := os.ReadDir(dir)
			require.NoError(t, err)
			assert.Len(t, left, 1, "Export leaves only the snapshot in the directory")
			_, err = Export(t.Context(), settings, example.target, path, NewMeter(nil))
			assert.ErrorIs(t, err, ErrExists)
		}
	}
}

func TestExport_notKept(t *testing.T) {
	l := runSampleCluster(t)
	path := filepath.Join(t.TempDir(), "out.db")
	settings := l.store(t)
	_, err := Export(t.Context(), settings, archive.Target{Revision: l.last + 1}, path, NewMeter(nil))
	require.ErrorIs(t, err, archive.ErrNotKept)
	assert.ErrorContains(t, err, fmt.Sprintf("revisions %d to %d", l.revision, l.last))

	settings = l.storeAsSidecar(t)
	_, err = Export(t.Context(), settings, archive.Target{Revision: l.last + 1}, path, NewMeter(nil))
	require.ErrorIs(t, err, archive.ErrNotKept)
	_, err = Export(t.Context(), settings, archive.Target{Revision: 3}, path, NewMeter(nil))
	require.ErrorIs(t, err, archive.ErrNotKept)

	overview, err := List(t.Context(), settings, noon)
	require.NoError(t, err)
	require.Len(t, overview.Sidecar, 1)
	assert.Equal(t, []int64{l.revision, l.last, 1}, []int64{overview.Sidecar[0].From, overview.Sidecar[0].To, int64(overview.Sidecar[0].Deltas)})

	_, err = Export(t.Context(), Settings{Store: memory.New(), Keys: &format.Keys{}}, archive.Target{}, path, NewMeter(nil))
	assert.ErrorIs(t, err, archive.ErrNotKept)
	_, err = os.Lstat(path)
	assert.ErrorIs(t, err, os.ErrNotExist)
}

func TestExport_damagedNewestFull(t *testing.T) {
	l := runSampleCluster(t)
	for gap, want := range map[int64]string{0: "object not found\n", 5: "object not found\nat least 5 later revisions cannot be read\n"} {
		settings := l.store(t)
		l.addFullWithoutData(t, settings, gap)
		path := filepath.Join(t.TempDir(), "out.db")
		exported, err := Export(t.Context(), settings, archive.Target{}, path, NewMeter(nil))
		if gap == 0 {
			require.NoError(t, err, "without a gap, no revision is lost")
		} else {
			require.ErrorIs(t, err, ErrIncomplete)
			require.ErrorContains(t, err, fmt.Sprintf("at least 5 revisions after revision %d cannot be read", l.last))
		}
		assert.Equal(t, gap, exported.Lost)
		assert.Len(t, exported.Damaged, 1)
		assert.Equal(t, l.last, exported.Revision)
		l.requireSnapshot(t, path, l.last)
		var text bytes.Buffer
		require.NoError(t, exported.Print(&text))
		assert.Contains(t, text.String(), want)
	}
}

func TestExport_unreadableEnd(t *testing.T) {
	l := runSampleCluster(t)
	settings := l.store(t)
	stored := settings.Store.(*memory.Store)
	name := archive.SegmentName(1, format.After(l.revision))
	stored.SetContent(name, []byte("no segment\n"))
	path := filepath.Join(t.TempDir(), "out.db")
	exported, err := Export(t.Context(), settings, archive.Target{}, path, NewMeter(nil))
	require.ErrorIs(t, err, ErrIncomplete)
	require.ErrorContains(t, err, fmt.Sprintf("revisions after revision %d cannot be read (%s", l.revision, name))
	l.requireSnapshot(t, path, l.revision)
	assert.Equal(t, l.revision, exported.Revision)
	require.Len(t, exported.Damaged, 1)
	assert.Contains(t, exported.Damaged[0], name)
	overview, err := List(t.Context(), settings, noon)
	require.NoError(t, err)
	assert.Equal(t, exported.Damaged[0], overview.Generations[0].Windows[0].Beyond)
	var text bytes.Buffer
	require.NoError(t, overview.Print(&text))
	assert.Contains(t, text.String(), "later revisions cannot be read")
}

func TestExport_missingKey(t *testing.T) {
	l, trusted, other := runSampleCluster(t), formattest.NewKeys(t), formattest.NewKeys(t)
	for what, names := range map[string]func(kept *archive.Archive, head archive.Head) string{
		"the last segment": func(kept *archive.Archive, head archive.Head) string {
			l.addMarker(t, kept, head.Start)
			return archive.SegmentName(1, head.Position)
		},
		"the newest full snapshot": func(kept *archive.Archive, _ archive.Head) string {
			full, err := archivetest.PutFull(t.Context(), kept, archive.Full{
				Cluster: "c1", Generation: 1, Revision: l.last + 10, Time: noon.Add(time.Hour), Chain: format.Seed("c1", 1, l.last+10), Reason: "gap",
			}, bytes.NewReader(l.snapshot))
			require.NoError(t, err)
			return archive.ManifestName(1, full.Name())
		},
	} {
		t.Run(what, func(t *testing.T) {
			settings := l.storeWith(t, trusted.Load(t))
			head, err := settings.Archive().Head(t.Context(), 1)
			require.NoError(t, err)
			name := names(archive.New(settings.Store, other.Load(t)), head)
			path, plan := filepath.Join(t.TempDir(), "out.db"), planned(t)
			_, err = Export(t.Context(), settings, archive.Target{}, path, NewMeter(nil))
			_, failed := Restore(t.Context(), settings, archive.Target{}, plan, NewMeter(nil))
			for _, err := range []error{err, failed} {
				require.ErrorIs(t, err, format.ErrUntrusted)
				require.ErrorContains(t, err, name)
				require.ErrorContains(t, err, "--backup-trusted-keys")
			}
			assert.NoFileExists(t, path)
			assert.NoDirExists(t, plan.DataDir)
			_, err = Export(t.Context(), settings, archive.Target{Revision: l.last}, path, NewMeter(nil))
			require.NoError(t, err, "a revision that is set explicitly is exported even if later backups are untrusted")
		})
	}
}

// Export must not read revisions from the sidecar's backups that our own backups should contain.
func TestExport_prefersOurBackups(t *testing.T) {
	l := runSampleCluster(t)
	settings := l.storeAsSidecar(t)
	kept := settings.Archive()
	_, err := kept.Create(t.Context(), archive.Cluster{Cluster: "c1", Created: noon.Add(time.Hour)}, 1)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "out.db")
	for _, target := range []archive.Target{{}, {Time: noon.Add(2 * time.Hour)}} {
		_, err = Export(t.Context(), settings, target, path, NewMeter(nil))
		require.ErrorIs(t, err, archive.ErrNotKept, target)
		_, err = Restore(t.Context(), settings, target, planned(t), NewMeter(nil))
		require.ErrorIs(t, err, archive.ErrNotKept, target)
	}
	exported, err := Export(t.Context(), settings, archive.Target{Time: noon.Add(time.Duration(l.last-2) * time.Second)}, path, NewMeter(nil))
	require.NoError(t, err, "targets before our first backup are exported from the sidecar's backups")
	assert.Equal(t, l.last-2, exported.Revision)
}

// Export must require a signature, because anyone with write access to the store can create an object with a name
// like the sidecar's.
func TestExport_unsignedSidecarBackups(t *testing.T) {
	l := runSampleCluster(t)
	settings := l.storeAsSidecar(t)
	settings.Keys = formattest.NewKeys(t).Load(t)
	require.True(t, settings.Keys.Trusts())
	path := filepath.Join(t.TempDir(), "out.db")
	_, err := Export(t.Context(), settings, archive.Target{}, path, NewMeter(nil))
	require.ErrorIs(t, err, format.ErrUntrusted)
	require.ErrorContains(t, err, "--accept=unsigned")
	require.NoFileExists(t, path)
	_, err = Restore(t.Context(), settings, archive.Target{}, planned(t), NewMeter(nil))
	require.ErrorIs(t, err, format.ErrUntrusted)

	settings.AcceptUnsigned = true
	exported, err := Export(t.Context(), settings, archive.Target{}, path, NewMeter(nil))
	require.NoError(t, err)
	assert.True(t, exported.Unsigned)
	assert.Contains(t, printed(t, exported), "the full snapshot is not signed")
	l.requireSnapshot(t, path, l.last)
	restored, err := Restore(t.Context(), settings, archive.Target{}, planned(t), NewMeter(nil))
	require.NoError(t, err)
	assert.True(t, restored.Unsigned)
}

func TestExport_damagedSidecarFull(t *testing.T) {
	l := runSampleCluster(t)
	settings := l.storeAsSidecar(t)
	name := fmt.Sprintf("v2/Full-%08d-%08d-%d", 0, l.revision+2, noon.Unix()+30)
	settings.Store.(*memory.Store).SetContent(name, l.snapshot[:len(l.snapshot)-7])
	path := filepath.Join(t.TempDir(), "out.db")
	exported, err := Export(t.Context(), settings, archive.Target{}, path, NewMeter(nil))
	require.NoError(t, err)
	assert.NotEqual(t, name, exported.Full)
	l.requireSnapshot(t, path, l.last)
}
