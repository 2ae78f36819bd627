package backups

import (
	"bytes"
	"context"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/bootstrap/backup/archive"
	"etcd-wrapper/bootstrap/datadir"
	"etcd-wrapper/bootstrap/recovery/seed"
)

// planned is the data directory of a member alone that is to be made.
func planned(t *testing.T) seed.Seed {
	return seed.Seed{
		DataDir: filepath.Join(t.TempDir(), "new.etcd"), Name: "default", Token: seed.NewToken(),
		Members: []seed.Member{{Name: "default", PeerURLs: []string{"http://127.0.0.1:1"}}},
	}
}

// A data directory comes from our store, from the sidecar's, or from a snapshot of either.
func TestADataDirectoryIsRestoredOffline(t *testing.T) {
	t.Parallel()
	l := live(t)
	file := filepath.Join(t.TempDir(), "snapshot")
	exported, err := Export(t.Context(), l.keep(t), archive.Target{}, file, NewMeter(nil))
	require.NoError(t, err)
	for name, restore := range map[string]func(context.Context, seed.Seed) (Restored, error){
		"ours": func(ctx context.Context, plan seed.Seed) (Restored, error) {
			return Restore(ctx, l.keep(t), archive.Target{}, plan, NewMeter(nil))
		},
		"the sidecar's": func(ctx context.Context, plan seed.Seed) (Restored, error) {
			return Restore(ctx, l.keepAsSidecar(t), archive.Target{}, plan, NewMeter(nil))
		},
		"a snapshot": func(ctx context.Context, plan seed.Seed) (Restored, error) {
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
			assert.Equal(t, restored.GoesOn, datadir.Stand(plan.DataDir).Revision)
			assert.NoFileExists(t, plan.DataDir+".snapshot")

			_, err = restore(t.Context(), plan)
			require.ErrorContains(t, err, "it is not empty")
		})
	}
}

func TestWithoutTheNewestFullAnOlderOneIsRestoredAndWhatIsLostIsTold(t *testing.T) {
	t.Parallel()
	l, plan := live(t), planned(t)
	settings := l.keep(t)
	l.lose(t, settings, 5)
	restored, err := Restore(t.Context(), settings, archive.Target{}, plan, NewMeter(nil))
	require.ErrorIs(t, err, ErrIncomplete)
	require.ErrorContains(t, err, plan.DataDir+" is incomplete: 5 revisions or more")
	assert.Equal(t, l.last, restored.Revision)
	assert.Greater(t, restored.GoesOn, l.last+5+archive.Margin, "above what the full had")
	assert.EqualValues(t, 5, restored.Lost)
	assert.Len(t, restored.Damaged, 1)
	var text bytes.Buffer
	require.NoError(t, restored.Print(&text))
	assert.Contains(t, text.String(), "5 revisions behind it, or more, cannot be read\n")
	_, err = datadir.Verify(t.Context(), plan.DataDir, bootstrap.Full)
	require.NoError(t, err)
}

func TestATargetThatIsNotKeptMakesNoDataDirectory(t *testing.T) {
	t.Parallel()
	l, plan := live(t), planned(t)
	_, err := Restore(t.Context(), l.keep(t), archive.Target{Revision: 1 << 40}, plan, NewMeter(nil))
	require.ErrorIs(t, err, archive.ErrNotKept)
	assert.NoDirExists(t, plan.DataDir)
}
