package datadir

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"

	"etcd-wrapper/bootstrap/datadir/datadirtest"
)

func TestStandingTellsClusterAndRevisionOfAClosedMember(t *testing.T) {
	dir := datadirtest.New(t)
	stands := Stand(dir)
	assert.NotZero(t, stands.ClusterID)
	assert.NotZero(t, stands.MemberID)
	assert.Equal(t, 1, stands.Members)
	assert.Greater(t, stands.Revision, int64(100))
	assert.GreaterOrEqual(t, stands.Reach, stands.Revision)
}

// Without its database a member reaches what its log can make.
func TestStandingCountsWhatTheLogHoldsBeyondTheDatabase(t *testing.T) {
	dir := datadirtest.Born(t)
	before := Stand(dir)
	require.Equal(t, before.Revision, before.Reach, "etcd was closed, so nothing is left in the log alone")
	old, err := os.ReadFile(database(dir))
	require.NoError(t, err)
	server, err := datadirtest.Start(dir)
	require.NoError(t, err)
	client := v3client.New(server.Server)
	for range 3 {
		_, err := client.Put(t.Context(), "key", "value")
		require.NoError(t, err)
	}
	server.Close()
	require.NoError(t, os.WriteFile(database(dir), old, 0o600))
	stands := Stand(dir)
	assert.Equal(t, before.Revision, stands.Revision)
	assert.Equal(t, before.Revision+3, stands.Reach)
}

func database(dir string) string { return filepath.Join(dir, "member", "snap", "db") }

func TestStandingOfNothingIsZero(t *testing.T) {
	assert.Zero(t, Stand(filepath.Join(t.TempDir(), "none")))
}
