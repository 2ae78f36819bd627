package recovery

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/bootstrap/datadir"
)

// An empty volume with the configuration of a cluster that lives somewhere else, and writes its backups.
func TestAClusterThatLivesIsNotReplacedByItsBackups(t *testing.T) {
	w := newWorld(t)
	w.used()
	living := newWorld(t)
	living.archive = w.archive
	require.NoError(t, os.Rename(w.member.DataDir, living.member.DataDir))
	writes := func(key string) {
		living.put(key)
		living.backUp(1)
	}
	clock, pauses, builds := at, 0, 0
	w.now = func() time.Time { return clock }
	w.options.Pause = func(context.Context, int) {
		if pauses++; pauses <= 3 {
			writes(fmt.Sprint("in pause ", pauses))
		}
		clock = clock.Add(20 * time.Second)
	}
	require.NoError(t, w.runWith(func(action Action) error {
		switch action {
		case BuildData:
			builds++
		case ClaimGeneration:
			if builds == 1 {
				writes("while it is built")
			}
		}
		return nil
	}))
	assert.Equal(t, 2, builds)
	assert.Equal(t, 3+3, pauses, "it has been still for a minute")
	assert.Contains(t, w.log.String(), "a process somewhere else still writes them")
	keys, _ := w.keys()
	assert.Contains(t, keys, "in pause 3")
}

// What the volume itself has brought into the store is no sign that its cluster lives.
func TestGoingBackBringsWhatTheVolumeHasAndBuildsOnce(t *testing.T) {
	for name, of := range map[string]struct {
		target archive.Target
		keys   []string
	}{
		"to a revision": {archive.Target{Revision: 2}, []string{"key"}},
		"to the latest": {archive.Target{}, []string{"key", "only on the volume"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.used()
			w.put("only on the volume")
			w.options.Flush = func(context.Context, string, datadir.Position) error { w.backUp(1); return nil }
			w.options.Request = &Request{Target: of.target, ID: "drop"}
			w.options.Pause = func(context.Context, int) { t.Error("there is nothing to wait for") }
			builds := 0
			require.NoError(t, w.runWith(func(action Action) error {
				if action == BuildData {
					builds++
				}
				return nil
			}))
			assert.Equal(t, 1, builds)
			keys, _ := w.keys()
			assert.Equal(t, of.keys, keys)
		})
	}
}

// It went on serving after its backups had gone on without it, and is started again.
func TestWhatAClusterHadAfterItWasReplacedIsToldInNumbers(t *testing.T) {
	w := newWorld(t)
	w.used()
	living := filepath.Join(t.TempDir(), "living")
	require.NoError(t, os.Rename(w.member.DataDir, living))
	require.NoError(t, w.run())
	w.put("of generation 2")
	w.backUp(2)
	w.older = living
	w.rollBack()
	w.put("1", "2", "3")
	w.log.Reset()
	require.NoError(t, w.run())
	assert.Contains(t, w.log.String(), "; 3 revisions are lost, which generation 1 got after revision 2, from which generation 2 was restored")
	assert.Len(t, w.asides(), 1)
}
