package member_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

func TestOpen_dataOfAnotherMember(t *testing.T) {
	dir, _ := born(t)
	before := tree(t, dir)
	config := renamed(t, dir)
	config.InitialCluster += ",etcd-0=http://127.0.0.1:1"
	b := benchWith(t, config)
	require.ErrorContains(t, b.Open(soon(t)), `is that of member "etcd-0" at ["http://127.0.0.1:`)
	opened, _ := b.Close()
	assert.True(t, opened, "the next start must not take them for good")
	assert.Equal(t, before, tree(t, dir))
}

func TestAMemberMayChange(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(config, before *embed.Config){
		"its name":    func(config, before *embed.Config) { config.AdvertisePeerUrls = before.AdvertisePeerUrls },
		"its address": func(config, before *embed.Config) { config.Name = before.Name },
		"both":        func(_, _ *embed.Config) {},
	} {
		t.Run(name, func(t *testing.T) {
			dir, _, before := bornOf(t)
			config := renamed(t, dir)
			change(config, before)
			config.InitialCluster = config.InitialClusterFromName(config.Name)
			b := benchWith(t, config)
			require.NoError(t, b.Open(soon(t)))
			_, err := b.Close()
			require.NoError(t, err)
			assert.Equal(t, name == "both", strings.Contains(b.log.String(), "another name and other peer URLs"), "it is warned of")
		})
	}
}

// Whoever restores a snapshot may leave the names to etcd.
func TestARestoredMemberIsTaken(t *testing.T) {
	born, _ := born(t)
	dir := filepath.Join(t.TempDir(), "new.etcd")
	require.NoError(t, snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
		SnapshotPath: filepath.Join(born, "member", "snap", "db"), SkipHashCheck: true, OutputDataDir: dir,
		Name: "default", PeerURLs: []string{"http://localhost:2380"}, InitialCluster: "default=http://localhost:2380",
		InitialClusterToken: "etcd-cluster",
	}))
	for range 2 {
		b := newBench(t, dir)
		require.NoError(t, b.Open(soon(t)))
		reply, err := b.client(t).Get(soon(t), "key")
		require.NoError(t, err)
		require.Len(t, reply.Kvs, 1)
		_, err = b.Close()
		require.NoError(t, err)
	}
}

// renamed is the configuration of another member on the same directory.
func renamed(t *testing.T, dir string) *embed.Config {
	t.Helper()
	other := config(t, dir)
	other.Name = "etcd-1"
	other.InitialCluster = other.InitialClusterFromName(other.Name)
	return other
}
