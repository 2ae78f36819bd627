package member_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/server/v3/embed"

	"etcd-wrapper/bootstrap/datadir/datadirtest"
)

// preservedDirs returns the member directories that were preserved.
func preservedDirs(t *testing.T, dir string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "member.uninitialized-*"))
	require.NoError(t, err)
	return found
}

// etcd would start with this data and wait forever for an election.
func TestOpen_uninitializedData(t *testing.T) {
	dir := newDir(t)
	for round := range 2 { // the second round finds the directories that the first round preserved
		require.NoError(t, os.RemoveAll(filepath.Join(dir, "member")))
		datadirtest.Initialize(t, dir)
		b := newBench(t, dir)
		require.NoError(t, b.Open(soon(t)))
		_, err := b.client(t).Put(soon(t), "key", "value")
		require.NoError(t, err)
		b.mustClose(t)
		assert.Contains(t, b.log.String(), "starting with an empty data directory")
		assert.Len(t, preservedDirs(t, dir), round+1)
	}
}

// stoppedMember returns the data directory, the log and the configuration of a member that was stopped cleanly.
func stoppedMember(t *testing.T) (dir, segment string, config *embed.Config) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "[new].etcd") // the name is also a valid path/filepath pattern
	b := newBench(t, dir)
	require.NoError(t, b.Open(soon(t)))
	require.Eventually(t, func() bool { return strings.Contains(b.log.String(), "set initial cluster version") }, patience, tick)
	_, err := b.client(t).Put(soon(t), "key", "value")
	require.NoError(t, err)
	b.mustClose(t)
	return dir, filepath.Join(dir, "member", "wal", "0000000000000000-0000000000000000.wal"), b.config
}

// etcd would treat the data as new and wait forever for an election or its peers.
func TestOpen_lostLog(t *testing.T) {
	dir, segment, _ := stoppedMember(t)
	require.NoError(t, os.Remove(segment))
	b := newBench(t, dir)
	require.ErrorContains(t, b.Open(soon(t)), "has no voters, but this is not a new member")
	opened, err := b.Close()
	assert.True(t, opened, "the data was found unfit: the next start must not take it for good")
	require.Error(t, err)
}
