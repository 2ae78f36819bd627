package maintenance

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func keeperWith(threshold Threshold, maxPause time.Duration) *Maintainer {
	return New(Options{Threshold: threshold, MaxPause: maxPause, Gate: &Gate{}})
}

func TestAtStart(t *testing.T) {
	dir := t.TempDir()
	k := keeperWith(usual, 15*time.Second)
	assert.EqualValues(t, 450, k.AtStart(dir, 1000*mebibyte), "45% of it")
	assert.EqualValues(t, 100, k.AtStart(dir, 150*mebibyte), "at least so many bytes")
	assert.Zero(t, k.AtStart(dir, 50*mebibyte), "it cannot be worth it")
	assert.Zero(t, k.AtStart(dir, 1<<60), "the copy has no room")
	assert.Zero(t, k.AtStart(filepath.Join(dir, "missing"), 1000*mebibyte), "nobody knows whether it has")
	assert.Zero(t, keeperWith(usual, time.Second).AtStart(dir, 1000*mebibyte), "550 MiB may be kept, which takes longer than a second")
	assert.Zero(t, keeperWith(Threshold{}, time.Hour).AtStart(dir, 1000*mebibyte), "never is never")
}

func TestStartProgress(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data[1]") // a name, not a pattern
	require.NoError(t, os.Mkdir(dir, 0o700))
	assert.Empty(t, StartProgress(dir))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "db.tmp.1234"), make([]byte, 3*mebibyte), 0o600))
	assert.Equal(t, "defragments its database before it serves: 3.0 MiB are copied", StartProgress(dir))
}
