package aside

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestWhatWasSetAsideIsFoundTheOldestFirst(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data")
	noon := time.Date(2026, 1, 2, 12, 0, 0, 0, time.FixedZone("", 3600))
	assert.Empty(t, Beside(path))
	for _, name := range []string{Name(path, noon.Add(time.Millisecond)), Name(path, noon), path + ".aside-mine", path + "2.aside-20260102T110000.000Z"} {
		require.NoError(t, os.Mkdir(name, 0o700))
	}
	assert.Equal(t, []Aside{
		{path + ".aside-20260102T110000.000Z", noon.UTC()}, {path + ".aside-20260102T110000.001Z", noon.Add(time.Millisecond).UTC()},
	}, Beside(path))
}

func TestNothingLiesBesideWhatHasNoPlace(t *testing.T) {
	t.Chdir(t.TempDir())
	require.NoError(t, os.Mkdir(Name("", time.Now()), 0o700))
	assert.Empty(t, Beside(""))
}
