package etcdconf

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/server/v3/embed"
)

func TestDefaultConfig_isValid(t *testing.T) {
	const dir = `/tmp/a "strange": #directory`
	document, err := Source{DataDir: dir}.Load()
	require.NoError(t, err)
	require.Equal(t, dir, document.DataDir)

	path := filepath.Join(t.TempDir(), "etcd.yaml")
	write(t, path, string(document.YAML))
	config, err := embed.ConfigFromFile(path)
	require.NoError(t, err)
	require.NoError(t, config.Validate())
	require.Equal(t, dir, config.Dir)
	require.Equal(t, "etcd-0", config.Name)
	require.Equal(t, "etcd-0=http://127.0.0.1:2380", config.InitialCluster)
	require.EqualValues(t, 8589934592, config.QuotaBackendBytes)
	require.EqualValues(t, 10000, config.SnapshotCount)
	require.Equal(t, "periodic 30m basic", config.AutoCompactionMode+" "+config.AutoCompactionRetention+" "+config.Metrics)
}

func TestConfigFile(t *testing.T) {
	const option = "/option/new.etcd"
	for name, test := range map[string]struct{ content, yaml, dataDir, err string }{
		"own data-dir":       {content: "# kept\ndata-dir: /own\nname: a", yaml: "# kept\ndata-dir: /own\nname: a", dataDir: "/own"},
		"no data-dir":        {content: "# kept\nquota-backend-bytes: 8589934592", yaml: "# kept\nquota-backend-bytes: 8589934592\ndata-dir: \"/option/new.etcd\"\n", dataDir: option},
		"empty file":         {yaml: "data-dir: \"/option/new.etcd\"\n", dataDir: option},
		"document in braces": {content: "{name: a}", err: "cannot append data-dir: set it in the file, or use block-style YAML instead of braces"},
		"not YAML":           {content: "\t: x", err: "invalid etcd configuration"},
		"wrong type":         {content: "data-dir: [a]", err: "data-dir: must be text (in quotes if it looks like another type), not a list"},
		"not a mapping":      {content: "hello", err: "must be a mapping of keys to values"},
		"only comments":      {content: "# later", yaml: "# later\ndata-dir: \"/option/new.etcd\"\n", dataDir: option},
		"separate wal-dir":   {content: "data-dir: /own\nwal-dir: /wal", err: "wal-dir is not supported"},
		"too large":          {content: strings.Repeat("#", maxBytes+1), err: "larger than 1048576 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "etcd.yaml")
			write(t, path, test.content)
			document, err := Source{DataDir: option, File: path}.Load()
			if test.err != "" {
				require.ErrorContains(t, err, test.err)
				require.ErrorContains(t, err, path)
			} else {
				require.NoError(t, err)
			}
			require.Equal(t, test.yaml, string(document.YAML))
			require.Equal(t, test.dataDir, document.DataDir)
		})
	}
}

func TestUnreadableConfigFile(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	for _, path := range []string{pipe, t.TempDir(), "/no/such/file"} {
		_, err := Source{DataDir: "/data", File: path}.Load()
		require.ErrorContains(t, err, path)
		require.NotErrorIs(t, err, ErrUnusable, "the file may be readable at the next start")
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
}

func TestSharedConfigFile_servedForThePod(t *testing.T) {
	path := filepath.Join(t.TempDir(), "etcd.yaml")
	write(t, path, `initial-advertise-peer-urls: {etcd-main-0: [http://a:2380], etcd-main-1: [http://b:2380]}
advertise-client-urls: {etcd-main-0: [http://a:2379], etcd-main-1: [http://b:2379]}
`)
	document, err := Source{DataDir: "/volume/new.etcd", File: path, PodName: "etcd-main-1"}.Load()
	require.NoError(t, err)
	checked, err := Parse(document.YAML)
	require.NoError(t, err)
	require.Equal(t, "etcd-main-1", checked.Etcd.Name)
	require.Equal(t, "etcd-main-0=http://a:2380,etcd-main-1=http://b:2380", checked.Etcd.InitialCluster)
	require.Equal(t, "/volume/new.etcd", checked.Etcd.Dir)

	_, err = Source{DataDir: "/volume/new.etcd", File: path, PodName: "etcd-main-2"}.Load()
	require.ErrorIs(t, err, ErrUnusable)
	require.ErrorContains(t, err, path)
}

// Load must replace the variables for the name and the namespace of the pod.
func TestConfigFile_podAndNamespace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "etcd.yaml")
	write(t, path, "name: $(POD_NAME)\ninitial-cluster-token: $(POD_NAMESPACE)/etcd\n")
	for namespace, token := range map[string]string{"shop": "shop/etcd", "": "$(POD_NAMESPACE)/etcd"} {
		document, err := Source{DataDir: "/data/new.etcd", File: path, PodName: "etcd-1", Namespace: namespace}.Load()
		require.NoError(t, err)
		require.Contains(t, string(document.YAML), "name: etcd-1\n")
		require.Contains(t, string(document.YAML), "initial-cluster-token: "+token+"\n")
	}
}
