package writer

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
	"etcd-wrapper/internal/preserved"
)

// segmentsOf are the names of those in a spool.
func (s *stand) segmentsOf(dir string) (names []string) {
	s.Helper()
	found, err := os.ReadDir(filepath.Join(dir, "segments"))
	require.NoError(s, err)
	for _, entry := range found {
		names = append(names, entry.Name())
	}
	return names
}

// waitingStand is one whose last write waits for the store, which is back by now.
func waitingStand(t *testing.T) *stand {
	t.Helper()
	s := newStand(t)
	s.run()
	s.awaitStored(s.put("a", "1"))
	s.store.Inject(memory.Fault{Err: &store.Unavailable{}})
	s.put("a", "acknowledged")
	s.eventually(func(Facts) bool { return s.waits() > 0 }, "it waits")
	s.end()
	s.store.Heal()
	return s
}

// After a restore nobody else may have what waited.
func TestWhatWaitsOfOtherDataIsSetAside(t *testing.T) {
	s := waitingStand(t)
	waited := s.segmentsOf(s.options.SpoolDir)
	s.is(clusterID, 2)
	again, err := New(s.options)
	require.NoError(t, err)
	assert.Zero(t, again.Facts().SpoolBytes)
	assert.Empty(t, s.segmentsOf(s.options.SpoolDir))
	kept := preserved.Copies(s.options.SpoolDir)
	require.Len(t, kept, 1)
	assert.Equal(t, waited, s.segmentsOf(kept[0].Path))
	assert.Contains(t, s.log.String(), "what waited for the store belongs to other data, and is preserved")
	assert.Contains(t, s.log.String(), kept[0].Path)
}

// On a full volume, say: what is captured next must not come in its place.
func TestNoBackupsAreMadeWhereWhatWaitedCannotBeSetAside(t *testing.T) {
	s := waitingStand(t)
	waited := s.segmentsOf(s.options.SpoolDir)
	s.is(clusterID, 2)
	moved := s.options.SpoolDir + strings.Repeat("d", 255-len(".aside-20260102T110000.000Z")-len("spool")+1)
	require.NoError(t, os.Rename(s.options.SpoolDir, moved)) // with more behind it the name would be too long
	s.options.SpoolDir = moved
	_, err := New(s.options)
	require.ErrorContains(t, err, "cannot set aside")
	assert.Equal(t, waited, s.segmentsOf(s.options.SpoolDir))
}
