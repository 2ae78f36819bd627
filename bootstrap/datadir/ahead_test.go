package datadir

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/pagecache"
)

// A file without data takes no time to read, and memory as any other.
func TestAllOfAFileIsReadAhead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	pagecache.RequireDisk(t, filepath.Dir(path))
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	require.NoError(t, os.Truncate(path, 100<<20))
	require.NotEqual(t, 1.0, pagecache.Share(t, path))
	intoMemory(t.Context(), path)
	// A machine that is short of memory may have dropped some of it again.
	assert.Greater(t, pagecache.Share(t, path), 0.9)
}
