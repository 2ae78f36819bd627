package disk_test

import (
	"io/fs"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/internal/disk"
)

func TestVolume_freeSpace(t *testing.T) {
	left, size, err := disk.Space(t.TempDir())
	require.NoError(t, err)
	assert.Positive(t, left)
	assert.GreaterOrEqual(t, size, left)

	missing := filepath.Join(t.TempDir(), "missing")
	_, _, err = disk.Space(missing)
	require.ErrorIs(t, err, fs.ErrNotExist)
	assert.ErrorContains(t, err, missing)
}
