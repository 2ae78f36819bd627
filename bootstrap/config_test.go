package bootstrap_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/bootstrap"
)

func TestTheStoredConfigurationIsReplacedAsAWholeAndPrivate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "etcd.conf.yaml")
	require.NoError(t, os.WriteFile(path, []byte("a much longer older configuration"), 0o644))
	require.NoError(t, bootstrap.StoreConfig(path, []byte("name: etcd-0")))
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, "name: etcd-0", string(content))
	info, err := os.Stat(path)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	assert.ErrorContains(t, bootstrap.StoreConfig(filepath.Join(path, "below", "a", "file"), nil), "cannot store etcd configuration")
}

func TestOnlyANewClusterOfOneHasItsConfigurationBeforeTheResult(t *testing.T) {
	for config, want := range map[string]bool{
		"initial-cluster: etcd-0=http://127.0.0.1:2380\ninitial-cluster-state: new":      true,
		"initial-cluster: etcd-0=http://127.0.0.1:2380\ninitial-cluster-state: existing": false,
		"initial-cluster: a=http://a:1,b=http://b:1\ninitial-cluster-state: new":         false,
		"initial-cluster-state: new": false,
		"":                           false,
		"\tnot: yaml":                false,
	} {
		assert.Equal(t, want, bootstrap.Preview([]byte(config)).NewAlone, "%q", config)
	}
}

func TestTheLogThatAConfigurationNamesIsFoundOnTheVolume(t *testing.T) {
	path := t.TempDir()
	volume := bootstrap.NewVolume(path)
	log := filepath.Join(path, "new.etcd", "member", "wal")
	require.NoError(t, os.MkdirAll(log, 0o700))
	assert.Empty(t, volume.Logs(), "a directory is no log")
	require.NoError(t, os.WriteFile(filepath.Join(log, "0000000000000000-0000000000000000.wal"), nil, 0o600))
	require.Equal(t, []string{log}, volume.Logs())
	for config, want := range map[string]string{
		"data-dir: " + filepath.Join(path, "new.etcd/"):     log,
		"Data-Dir: " + filepath.Join(path, ".", "new.etcd"): log,
		"{data-dir: /elsewhere, wal-dir: " + log + "/}":     log,
		"name: etcd-0": "",
	} {
		assert.Equal(t, want, bootstrap.Preview([]byte(config)).LogDir, "%q", config)
	}
}
