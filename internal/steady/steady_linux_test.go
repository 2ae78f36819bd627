package steady_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/pagecache"
)

func TestWriter_keepsThePageCacheSmall(t *testing.T) {
	path := written(t, make([]byte, size))
	pagecache.RequireDisk(t, filepath.Dir(path))
	require.LessOrEqual(t, pagecache.Share(t, path), 0.25)
}
