package recovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
)

var at = time.Date(2026, 11, 22, 1, 2, 3, 0, time.UTC)

func TestValidVolumeIsNotChanged(t *testing.T) {
	w := newFilledWorld(t)
	w.put("another key")
	before := positionOf(t, w.member.DataDir)
	require.NoError(t, w.run())
	assert.Equal(t, before, positionOf(t, w.member.DataDir))
	assert.Len(t, w.generations(), 1)
	assert.NoFileExists(t, filepath.Join(w.volume, recordFile))
}

func TestClusterIsFoundedOnce(t *testing.T) {
	w := newWorld(t)
	require.NoError(t, w.run(), "nothing was ever kept")
	first, err := w.archive.Cluster(t.Context())
	require.NoError(t, err)
	_, err = w.archive.Create(t.Context(), first, 1)
	require.NoError(t, err)
	w.lose()
	w.requireRefused("no new cluster is created", "if nothing was ever stored there, delete cluster.json")
	assert.NoDirExists(t, w.member.DataDir)
}

// storeFailures list the first line and the next step for each failure of the store.
var storeFailures = []struct {
	err           error
	first, wayOut string
}{
	{store.ErrUnavailable, "store unavailable", "check that the store can be reached and that --backup-store names it"},
	{store.ErrDenied, "permission denied", "check that the credentials are valid and grant access"},
	{store.ErrNoBucket, "bucket not found", "create it, or correct --backup-store"},
	{fmt.Errorf("403: %w: %s", store.ErrDenied, store.ErrDenied.NextStep()), "403: permission denied: check that the credentials", ""},
}

func TestVolumeWithoutDataWaitsForStoreAndNamesTheWayOut(t *testing.T) {
	for _, c := range storeFailures {
		for name, lose := range losses {
			t.Run(name+", "+c.first, func(t *testing.T) {
				w := newFilledWorld(t)
				lose(w)
				w.store.Inject(memory.Fault{Op: memory.Get, Times: 20, Err: c.err})
				w.setClock(time.Second)
				r := w.recovery()
				reason := ""
				r.wait = func(ctx context.Context, times int) {
					w.wait(ctx, times)
					reason = cmp.Or(reason, r.Progress().Reason)
				}
				require.NoError(t, w.prepare(r))
				first, advice, _ := strings.Cut(reason, "; ")
				assert.Regexp(t, "^the store cannot be read, and may show that the data are lost or were rolled back: .*"+c.first, first)
				assert.True(t, strings.HasPrefix(advice, c.wayOut), advice)
				assert.Equal(t, errors.Is(c.err, store.ErrUnavailable), strings.Contains(advice, "move the data directory and exit_code.last away"), advice)
				assert.Contains(t, w.log.String(), "the cluster is restored to revision 2")
			})
		}
	}
}

func TestValidDataAreServedWhenStoreCannotBeRead(t *testing.T) {
	for _, c := range storeFailures {
		t.Run(c.first, func(t *testing.T) {
			w := newFilledWorld(t)
			start := w.setClock(time.Second)
			w.store.Inject(memory.Fault{Err: c.err})
			r := w.recovery()
			require.NoError(t, w.prepare(r))
			assert.Equal(t, comparing, w.now().Sub(start))
			p := r.Progress()
			assert.True(t, p.Uncompared)
			for _, part := range []string{"that were not compared with it", c.first, c.wayOut} {
				assert.Contains(t, p.Reason, part)
				assert.Regexp(t, `"level":"warn".*`+part, w.log.String())
			}
			assert.Empty(t, w.preserved())
		})
	}
}

// A store that never answers delays valid data no longer than one that fails.
func TestValidDataAreServedWhenTheStoreHangs(t *testing.T) {
	w := newFilledWorld(t)
	w.options.FlushSpool = func(ctx context.Context, _ archive.Identity, _ int64) error {
		<-ctx.Done()
		return ctx.Err()
	}
	r := w.recovery()
	r.serveAfter = time.Millisecond
	require.NoError(t, w.prepare(r))
	assert.True(t, r.Progress().Uncompared)
}

func TestSingleMemberWithoutAStore(t *testing.T) {
	w := newFilledWorld(t)
	w.options.Archive = nil
	before := positionOf(t, w.member.DataDir)
	require.NoError(t, w.run())
	assert.Equal(t, before, positionOf(t, w.member.DataDir))
	w.damage()
	w.requireRefused("there is no backup to restore", w.database())
	w.lose()
	require.NoError(t, w.run())
}
