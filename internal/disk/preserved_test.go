package disk

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCopies_oldestFirst(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data")
	noon := time.Date(2026, 1, 2, 12, 0, 0, 0, time.FixedZone("", 3600))
	assert.Empty(t, PreservedCopies(path))
	for _, name := range []string{PreservedName(path, noon), path + ".aside-20260102T110000.001Z", path + ".aside-mine", path + "2.aside-20260102T110000.000Z"} {
		require.NoError(t, os.Mkdir(name, 0o700))
	}
	assert.Equal(t, []PreservedCopy{
		{path + ".aside-20260102T110000.000Z", noon.UTC()}, {path + ".aside-20260102T110000.001Z", noon.Add(time.Millisecond).UTC()},
	}, PreservedCopies(path))
}

func TestCopies_literalPath(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a[b")
	require.NoError(t, os.Mkdir(dir, 0o700))
	for _, name := range []string{"data[1]", "data*", `da\ta?`} {
		path := filepath.Join(dir, name)
		require.NoError(t, os.Mkdir(PreservedName(path, time.Now()), 0o700))
		assert.Len(t, PreservedCopies(path), 1, path)
	}
}

func TestCopies_emptyPath(t *testing.T) {
	t.Chdir(t.TempDir())
	require.NoError(t, os.Mkdir(PreservedName("", time.Now()), 0o700))
	assert.Empty(t, PreservedCopies(""))
}

// PreservedCopies must list the copies in order of creation even if the clock was set back.
func TestCopies_clockSetBack(t *testing.T) {
	path, noon := filepath.Join(t.TempDir(), "data"), time.Now()
	var created []string
	for _, at := range []time.Time{noon, noon.Add(-time.Hour), noon, noon.Add(time.Microsecond)} {
		name := PreservedName(path, at)
		require.NoError(t, os.Mkdir(name, 0o700))
		created = append(created, name)
	}
	var found []string
	for _, preserved := range PreservedCopies(path) {
		found = append(found, preserved.Path)
	}
	assert.Equal(t, created, found)
}
