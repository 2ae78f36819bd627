package backup_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup"
	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/writer"
)

func TestWhatKilledTestRestoresHaveLeftIsRemovedAtTheBeginning(t *testing.T) {
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
	s.Begin(writer.Server(s.etcd.Server), backup.Data{Dir: s.dir})
	s.eventually(t, func(f backup.Facts) bool { return f.Shipped.LastFull != nil }, "a first full")
	require.NoError(t, s.End(soon(t)))
	for _, dir := range gone {
		assert.NoDirExists(t, dir)
	}
	for _, dir := range stays {
		assert.DirExists(t, dir)
	}
}
