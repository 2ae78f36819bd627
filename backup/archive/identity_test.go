package archive_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
)

func TestIdentity_isStoredInTheDataDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new.etcd")
	none, err := archive.ReadIdentity(dir)
	require.NoError(t, err)
	assert.False(t, none.Known())

	identity := archive.Identity{Cluster: "c1", Generation: 3, Position: format.Position{Revision: 7}, Session: "s"}
	require.NoError(t, identity.Write(dir))
	read, err := archive.ReadIdentity(dir)
	require.NoError(t, err)
	assert.Equal(t, identity, read)
	info, err := os.Stat(filepath.Join(dir, archive.IdentityFile))
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode())
}

// A damaged file does not mean that the data name no cluster.
func TestReadIdentity_reportsDamage(t *testing.T) {
	for _, content := range []string{"", "{", "{}", `{"cluster":"c1"}`} {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, archive.IdentityFile), []byte(content), 0o600))
		_, err := archive.ReadIdentity(dir)
		require.ErrorContains(t, err, filepath.Join(dir, archive.IdentityFile), content)
	}
}
