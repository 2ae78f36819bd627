package backup_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
)

func TestFilesOfKilledRestoreTestsAreRemoved(t *testing.T) {
	s := newSubject(t, archive.Verified)
	volume := filepath.Dir(s.dir)
	left := func(name string, age time.Duration) string {
		dir := filepath.Join(volume, name)
		require.NoError(t, os.Mkdir(dir, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "db"), []byte("half a database"), 0o600))
		require.NoError(t, os.Chtimes(dir, time.Time{}, time.Now().Add(-age)))
		return dir
	}
	gone := []string{left("scratch", 0), left("scratch-1", 48*time.Hour)}
	stays := []string{left("scratch-2", 0), left("scratched", 48*time.Hour)}
	s.start(t)
	s.end(t)
	for _, dir := range gone {
		assert.NoDirExists(t, dir)
	}
	for _, dir := range stays {
		assert.DirExists(t, dir)
	}
}
