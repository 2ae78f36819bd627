package backups

import (
	"bytes"
	"context"
	"crypto/sha256"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/pkg/v3/types"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/archivetest"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/format/formattest"
	"etcd-wrapper/backup/restore"
	"etcd-wrapper/backup/store/memory"
	"etcd-wrapper/bootstrap"
	"etcd-wrapper/bootstrap/datadir"
	"etcd-wrapper/recovery/seed"
)

// planned returns a plan that restores the data directory of a single-member cluster.
func planned(t *testing.T) seed.Seed {
	return seed.Seed{
		DataDir: filepath.Join(t.TempDir(), "new.etcd"), Name: "default", Token: seed.NewToken(),
		Members: types.URLsMap{"default": types.MustNewURLs([]string{"http://127.0.0.1:1"})},
	}
}

// TestRestore restores a data directory from our own backups, from the sidecar's backups, and from a snapshot
// exported from either.
func TestRestore(t *testing.T) {
	t.Parallel()
	l := runSampleCluster(t)
	file := filepath.Join(t.TempDir(), "snapshot")
	exported, err := Export(t.Context(), l.store(t), archive.Target{}, file, NewMeter(nil))
	require.NoError(t, err)
	for name, restore := range map[string]func(context.Context, seed.Seed) (RestoreResult, error){
		"ours": func(ctx context.Context, plan seed.Seed) (RestoreResult, error) {
			return Restore(ctx, l.store(t), archive.Target{}, plan, NewMeter(nil))
		},
		"the sidecar's": func(ctx context.Context, plan seed.Seed) (RestoreResult, error) {
			return Restore(ctx, l.storeAsSidecar(t), archive.Target{}, plan, NewMeter(nil))
		},
		"a snapshot": func(ctx context.Context, plan seed.Seed) (RestoreResult, error) {
			return RestoreSnapshot(ctx, file, plan, nil, NewMeter(nil))
		},
	} {
		t.Run(name, func(t *testing.T) {
			plan := planned(t)
			restored, err := restore(t.Context(), plan)
			require.NoError(t, err)
			assert.Equal(t, exported.Revision, restored.Revision)
			assert.Greater(t, restored.GoesOn, restored.Revision+archive.Margin)
			_, err = datadir.Verify(t.Context(), plan.DataDir, bootstrap.Full)
			require.NoError(t, err)
			position, err := datadir.ReadPosition(plan.DataDir)
			require.NoError(t, err)
			assert.Equal(t, restored.GoesOn, position.Revision)
			assert.NoFileExists(t, plan.DataDir+".snapshot")

			_, err = restore(t.Context(), plan)
			require.ErrorContains(t, err, "the directory is not empty")
		})
	}
}

// Restore must detect a truncated snapshot before it reads a missing page, which would kill the process.
func TestRestoreSnapshot_truncated(t *testing.T) {
	t.Parallel()
	l, file := runSampleCluster(t), filepath.Join(t.TempDir(), "snapshot")
	for _, left := range []int{0, 5000, 8192, 12288, len(l.snapshot) - 1} {
		plan := planned(t)
		require.NoError(t, os.WriteFile(file, l.snapshot[:left], 0o600))
		_, err := RestoreSnapshot(t.Context(), file, plan, nil, NewMeter(nil))
		require.ErrorIs(t, err, restore.ErrDamaged)
		require.ErrorContains(t, err, "cannot restore "+file+": the backup is damaged")
		assert.NoDirExists(t, plan.DataDir)
	}
}

func TestRestoreSnapshot_copiedDatabase(t *testing.T) {
	t.Parallel()
	l, file, plan := runSampleCluster(t), filepath.Join(t.TempDir(), "db"), planned(t)
	require.NoError(t, os.WriteFile(file, l.snapshot[:len(l.snapshot)-sha256.Size], 0o600))
	_, err := RestoreSnapshot(t.Context(), file, plan, nil, NewMeter(nil))
	require.ErrorIs(t, err, restore.ErrDamaged)
	require.ErrorContains(t, err, "etcd-wrapper etcdutl snapshot restore "+file+" --skip-hash-check")
	assert.NoDirExists(t, plan.DataDir)
}

// Restore must not overwrite DIR.snapshot, because users may have given this name to a snapshot of their own.
func TestRestore_leavesOtherFiles(t *testing.T) {
	t.Parallel()
	l, plan := runSampleCluster(t), planned(t)
	mine := plan.DataDir + ".snapshot"
	require.NoError(t, os.WriteFile(mine, []byte("the only copy"), 0o600))
	_, err := Restore(t.Context(), l.storeAsSidecar(t), archive.Target{}, plan, NewMeter(nil))
	require.NoError(t, err)
	content, err := os.ReadFile(mine)
	require.NoError(t, err)
	assert.Equal(t, "the only copy", string(content))
	left, err := os.ReadDir(filepath.Dir(plan.DataDir))
	require.NoError(t, err)
	assert.Len(t, left, 2, "the directory contains only the user's snapshot and the data directory")
}

func TestRestore_damagedNewestFull(t *testing.T) {
	t.Parallel()
	l, plan := runSampleCluster(t), planned(t)
	settings := l.store(t)
	l.addFullWithoutData(t, settings, 5)
	restored, err := Restore(t.Context(), settings, archive.Target{}, plan, NewMeter(nil))
	require.ErrorIs(t, err, ErrIncomplete)
	require.ErrorContains(t, err, plan.DataDir+" is incomplete: at least 5 revisions")
	assert.Equal(t, l.last, restored.Revision)
	assert.Greater(t, restored.GoesOn, l.last+5+archive.Margin, "the new cluster starts above the revision of the damaged full snapshot")
	assert.EqualValues(t, 5, restored.Lost)
	assert.Len(t, restored.Damaged, 1)
	var text bytes.Buffer
	require.NoError(t, restored.Print(&text))
	assert.Contains(t, text.String(), "at least 5 later revisions cannot be read\n")
	_, err = datadir.Verify(t.Context(), plan.DataDir, bootstrap.Full)
	require.NoError(t, err)
}

// Restore must be able to restore an older generation even if the newest one is damaged.
func TestRestore_olderGeneration(t *testing.T) {
	t.Parallel()
	l, trusted := runSampleCluster(t), formattest.NewKeys(t)
	for name, spoil := range map[string]func(settings Settings, manifest string){
		"damaged": func(settings Settings, manifest string) {
			settings.Store.(*memory.Store).SetContent(manifest, []byte("no manifest\n"))
		},
		"not trusted": func(settings Settings, manifest string) {
			require.NoError(t, settings.Store.Delete(t.Context(), manifest))
			l.secondGeneration(t, archive.New(settings.Store, formattest.NewKeys(t).Load(t)), noon.Add(2*time.Hour))
		},
	} {
		settings, plan := l.storeWith(t, trusted.Load(t)), planned(t)
		kept := settings.Archive()
		require.NoError(t, archivetest.BeginGeneration(t.Context(), kept, archive.Generation{Number: 2, Cluster: "c2", Parent: 1, ParentRevision: l.last, Created: noon.Add(time.Hour)}))
		full := l.secondGeneration(t, kept, noon.Add(time.Hour))
		spoil(settings, archive.ManifestName(2, full.Name()))
		restored, err := Restore(t.Context(), settings, archive.Target{Revision: l.last}, plan, NewMeter(nil))
		require.NoError(t, err, name)
		assert.Equal(t, l.last, restored.Revision, name)
		assert.Greater(t, restored.GoesOn, l.last+archive.Margin, name)
	}
}

// secondGeneration adds a generation that starts at a much higher revision than the one it was restored from.
func (l sampleCluster) secondGeneration(t *testing.T, kept *archive.Archive, at time.Time) archive.Full {
	revision := l.last + 500
	full, err := archivetest.PutFull(t.Context(), kept, archive.Full{
		Cluster: "c2", Generation: 2, Revision: revision, Time: at, Chain: format.Seed("c2", 2, revision), Member: "m", Reason: "begin",
	}, bytes.NewReader(l.snapshot[:len(l.snapshot)-sha256.Size]))
	require.NoError(t, err)
	return full
}

func TestRestore_notKept(t *testing.T) {
	t.Parallel()
	l, plan := runSampleCluster(t), planned(t)
	_, err := Restore(t.Context(), l.store(t), archive.Target{Revision: 1 << 40}, plan, NewMeter(nil))
	require.ErrorIs(t, err, archive.ErrNotKept)
	assert.NoDirExists(t, plan.DataDir)
}
