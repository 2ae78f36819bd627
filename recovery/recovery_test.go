package recovery

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/store/memory"
	"etcd-wrapper/exitcode"
)

var at = time.Date(2026, 11, 22, 1, 2, 3, 0, time.UTC)

// A store that hangs must not delay valid data longer than a store that fails.
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

func TestValidVolumeIsNotChanged(t *testing.T) {
	w := newFilledWorld(t)
	w.put("another key")
	before := positionOf(t, w.member.DataDir)
	require.NoError(t, w.run())
	assert.Equal(t, before, positionOf(t, w.member.DataDir))
	assert.Len(t, w.generations(), 1)
	assert.NoFileExists(t, filepath.Join(w.volume, recordFile))
}

// etcd would refuse to create the cluster, so recovery must not initialize the store for it.
func TestClusterThatEtcdRefusesIsNotFounded(t *testing.T) {
	w := newWorld(t)
	w.member.InitialCluster += ",default=http://a:1,b=http://b:1"
	err := w.run()
	require.ErrorContains(t, err, "use the same URLs in both")
	assert.Equal(t, exitcode.BadConfig, w.statusOf(err))
	assert.Empty(t, w.objects(""))
}

func TestRestoreThatWasDoneIsLoggedOnce(t *testing.T) {
	w := newFilledWorld(t)
	w.options.Request = &Request{Target: archive.Target{Revision: 2}, ID: "drop"}
	require.NoError(t, w.run())
	r := w.recovery()
	for range 2 {
		require.NoError(t, w.prepare(r))
	}
	assert.Equal(t, 1, strings.Count(w.log.String(), "restore \\\"drop\\\" has already been done"))
}

func TestProgressWhileTheStoreIsUnreachable(t *testing.T) {
	w := newFilledWorld(t)
	w.store.Inject(memory.Fault{Op: memory.Get, Times: 3, Err: memory.ErrUnreachable})
	r := w.recovery()
	var waits, asks []Progress
	r.wait = func(context.Context, int) { waits = append(waits, r.Progress()) }
	r.interrupt = func(action Action) error {
		if action == AskTheStore {
			asks = append(asks, r.Progress())
		}
		return nil
	}
	require.NoError(t, w.prepare(r))
	require.Len(t, waits, 3)
	for _, is := range waits {
		assert.Equal(t, AskStore, is.State)
		assert.Equal(t, waits[0].Since, is.Since, "since the store cannot be read")
		assert.Contains(t, is.Reason, "memory://test/: store unavailable: dial tcp: connection refused; check that the store is reachable")
		assert.Contains(t, is.Reason, "; next attempt within ")
	}
	for _, is := range asks[1:] {
		assert.Contains(t, is.Reason, "store unavailable", "while it is asked again")
		assert.NotContains(t, is.Reason, "next attempt")
	}
}

func TestSpoolIsUploadedUnlessValidDataHaveIt(t *testing.T) {
	for name, test := range map[string]struct {
		action func(*world)
		has    archive.Identity // identity of the data on the volume
	}{
		"valid":  {func(*world) {}, archive.Identity{Cluster: ours, Generation: 1}},
		"broken": {losses["broken"], archive.Identity{}},
		"empty":  {losses["empty"], archive.Identity{}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFilledWorld(t)
			reach := positionOf(t, w.member.DataDir).HighestRevision
			test.action(w)
			flushes := 0
			w.options.FlushSpool = func(_ context.Context, data archive.Identity, told int64) error {
				flushes++
				assert.Equal(t, test.has, data)
				assert.True(t, told == reach || !data.Known())
				assert.Len(t, w.generations(), 1)
				return nil
			}
			require.NoError(t, w.run())
			assert.Equal(t, 1, flushes)
		})
	}
}
